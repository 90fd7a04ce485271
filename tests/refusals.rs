//! Files below 16 MB that are built to be expensive: each must be rejected using less memory than eight times its size plus 20 MB. If a
//! rejection took very long, this test would not end.

mod counting_allocator;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use counting_allocator::{IN_USE, MOST_IN_USE};
use waterline::{ChatTemplate, Model, Snapshot, Tokenizer};
use waterline_quant::F32;
use waterline_quant::gguf::{Array, Gguf, NewTensor, Value, Writer};
use waterline_quant::imatrix::Importances;

/// The bytes that a rejection may use in addition to eight times the file's size.
const FIXED: usize = 20 << 20;
const LARGEST: usize = 16 << 20;

/// Only one test may measure memory at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Checks that `open` rejects a file of `bytes` bytes with a sentence, within the memory limit.
fn refuses<T>(what: &str, bytes: usize, open: impl FnOnce() -> Result<T, waterline::Error>) {
    assert!(bytes <= LARGEST, "{what}: {bytes} bytes");
    let before = IN_USE.load(Ordering::Relaxed);
    MOST_IN_USE.store(before, Ordering::Relaxed);
    let clock = Instant::now();
    let error = open().err().unwrap_or_else(|| panic!("{what} is accepted"));
    let sentence = error.to_string();
    let most = MOST_IN_USE.load(Ordering::Relaxed) - before;
    println!(
        "{what}: {bytes} bytes, {:?}, {most} bytes of memory: {:.100}",
        clock.elapsed(),
        sentence
    );
    assert!(
        sentence.len() < 4_000,
        "{what}: {} bytes of words",
        sentence.len()
    );
    assert!(
        most < 8 * bytes + FIXED,
        "{what}: {most} bytes of memory for a file of {bytes}"
    );
}

fn gguf(folder: &Path, metadata: &[(String, Value)]) -> PathBuf {
    let path = folder.join("model.gguf");
    let writer = Writer::create(&path, metadata, &[]).expect("a file");
    writer.finish().expect("a whole file");
    path
}

fn length(path: &Path) -> usize {
    std::fs::metadata(path).expect("a file").len() as usize
}

/// Writes a GGUF file with many tensors without data.
fn tensors(folder: &Path, count: u64) -> PathBuf {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    let text = |text: &str, bytes: &mut Vec<u8>| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    text("general.architecture", &mut bytes);
    bytes.extend(8u32.to_le_bytes());
    text("llama", &mut bytes);
    for i in 0..count {
        text(&format!("{i:x}"), &mut bytes);
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
    }
    let path = folder.join("tensors.gguf");
    std::fs::write(&path, bytes).expect("written");
    path
}

#[test]
fn costly_files_are_refused_at_a_small_cost() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let architecture = |name: &str| ("general.architecture".to_string(), Value::from(name));
    for (count, name) in [(450_000, "many keys"), (65_000, "as many keys as are read")] {
        let key = |i: usize| (format!("llama.key.{i}"), Value::U32(0));
        let mut metadata: Vec<_> = (0..count).map(key).collect();
        metadata.push(architecture("llama"));
        let path = gguf(folder, &metadata);
        refuses(name, length(&path), || Model::open(&path));
    }
    let lists = [
        Array::String(vec![String::new(); 1_900_000]),
        Array::Array(vec![Array::U8(Vec::new()); 1_300_000]),
        Array::U8(vec![0; 15 << 20]),
        Array::F64(vec![0.0; 1_900_000]),
    ];
    for list in lists {
        let metadata = [
            architecture("llama"),
            ("tokenizer.ggml.tokens".into(), Value::Array(list)),
        ];
        let path = gguf(folder, &metadata);
        refuses("a long list", length(&path), || Model::open(&path));
    }
    let path = tensors(folder, 262_144);
    refuses("many tensors", length(&path), || Model::open(&path));

    // Configurations, in a folder without weights.
    let folder = folder.join("model");
    std::fs::create_dir(&folder).expect("a folder");
    let keys = |count: usize| {
        let mut text = String::from("{\"model_type\":\"gla\"");
        (0..count).for_each(|i| write!(text, ",\"k{i}\":{i}").expect("text"));
        text + "}"
    };
    let many = |element: &str, count: usize| format!("{{\"a\":[{}0]}}", element.repeat(count));
    for (name, text) in [
        ("400,000 keys", keys(400_000)),
        ("60,000 keys", keys(60_000)),
        ("eight million numbers", many("0,", 8_000_000)),
        ("five million objects", many("{},", 5_000_000)),
        (
            "a long text",
            format!("{{\"model_type\":\"{}\"}}", "a".repeat(15 << 20)),
        ),
        ("deep lists", "[".repeat(15 << 20)),
        ("a hundred thousand numbers", many("0,", 100_000)),
    ] {
        std::fs::write(folder.join("config.json"), &text).expect("written");
        refuses(name, text.len(), || Model::open(&folder));
        refuses(name, text.len(), || {
            Tokenizer::from_json(text.as_bytes(), "test")
        });
    }

    // Weights.
    let config = r#"{"model_type":"gla","hidden_size":8,"num_hidden_layers":1,"vocab_size":8,"num_heads":1}"#;
    std::fs::write(folder.join("config.json"), config).expect("written");
    let tensor = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    let mut header = String::from("{");
    (0..45_000).for_each(|i| write!(header, "\"{i}\":{tensor},").expect("text"));
    header.pop();
    let shape = format!(
        r#"{{"a":{{"dtype":"F32","shape":[{}0],"data_offsets":[0,0]}}"#,
        "1,".repeat(7 << 20)
    );
    for header in [header, shape] {
        let header = header + "}";
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        std::fs::write(folder.join("model.safetensors"), &bytes).expect("written");
        refuses("a long header", bytes.len(), || Model::open(&folder));
    }
    std::fs::remove_file(folder.join("model.safetensors")).expect("removed");
    let mut index = String::from("{\"weight_map\":{");
    (0..800_000).for_each(|i| write!(index, "\"{i}\":\"a\",").expect("text"));
    index.pop();
    index += "}}";
    std::fs::write(folder.join("model.safetensors.index.json"), &index).expect("written");
    refuses("a long index", index.len(), || Model::open(&folder));

    // Templates and saved sessions.
    for part in ["{{ a }}", "{% if a %}", "{{ ((((((", "{# a"] {
        let text = part.repeat((15 << 20) / part.len());
        let open = || -> Result<(), waterline::Error> {
            ChatTemplate::new(&text, "", "")?;
            // An accepted template must stay within the limit too.
            Err(waterline::Error::Cancelled { fed: 0 })
        };
        refuses("a long template", text.len(), open);
    }
    let entry =
        r#"{"layer":null,"name":"","kind":"ring","dtype":"u32","shape":[],"offset":0,"bytes":4},"#;
    for table in [
        entry.repeat((15 << 20) / entry.len()),
        "[],".repeat(5 << 20),
    ] {
        let table = format!("[{}]", table.trim_end_matches(','));
        let mut bytes = b"WLSTATE1".to_vec();
        bytes.extend(0u64.to_le_bytes());
        bytes.extend((table.len() as u64).to_le_bytes());
        bytes.extend(table.as_bytes());
        bytes.extend([0; 64]);
        let read = || Snapshot::read(&mut &bytes[..], bytes.len() as u64, "saved");
        refuses("a long table", bytes.len(), read);
        let read = || Snapshot::read(&mut &bytes[..], u64::MAX, "saved");
        refuses("a long table of an endless file", bytes.len(), read);
    }
}

/// Replaces every file of a model by a few bytes followed by a sparse hole of 12 GB.
#[test]
fn holes_are_refused_at_no_cost() {
    const LENGTH: u64 = 12 << 30;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hf_qwen2_sliding");
    let hole = |path: &Path, bytes: &[u8]| {
        std::fs::write(path, bytes).expect("written");
        let file = std::fs::File::options().write(true).open(path);
        file.and_then(|file| file.set_len(LENGTH)).expect("a hole");
    };
    let header = (LENGTH - 8).to_le_bytes();
    for (name, bytes) in [
        ("config.json", &b"{"[..]),
        ("generation_config.json", b"{"),
        ("model.safetensors", &header),
        ("model.safetensors.index.json", b"{\"weight_map\":{"),
        ("tokenizer.json", b"{"),
        ("tokenizer_config.json", b"{"),
        ("special_tokens_map.json", b"{"),
        ("vocab.json", b"{"),
        ("tokenizer.model", b"\x0a\x00"),
        ("tiktoken.model", b"YQ== 0"),
        ("rwkv_vocab_v20230424.txt", b"1 'a' 1"),
        ("chat_template.jinja", b"a"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["config.json", "model.safetensors"] {
            std::fs::copy(case.join(name), folder.path().join(name)).expect("a copy");
        }
        if name.ends_with("index.json") {
            std::fs::remove_file(folder.path().join("model.safetensors")).expect("removed");
        }
        if name == "vocab.json" {
            std::fs::write(folder.path().join("merges.txt"), "a b").expect("written");
        }
        hole(&folder.path().join(name), bytes);
        refuses(name, bytes.len(), || {
            Model::open(folder.path())?.tokenizer().map(drop)
        });
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    for counts in [[0, LENGTH / 13 - 2], [LENGTH / 24 - 1, 0]] {
        let counts = counts.map(u64::to_le_bytes).concat();
        let bytes = [b"GGUF", &3u32.to_le_bytes()[..], &counts].concat();
        hole(&path, &bytes);
        refuses("a GGUF file", bytes.len(), || Model::open(&path));
    }
    // An importance matrix whose numbers are in the hole.
    let keys = [
        ("general.type".to_string(), Value::from("imatrix")),
        ("imatrix.chunk_count".to_string(), Value::U32(1)),
    ];
    let tensors = ["a.counts", "a.in_sum2"].map(|name| NewTensor {
        name: name.into(),
        format: &F32,
        shape: vec![1],
    });
    let mut writer = Writer::create(&path, &keys, &tensors).expect("a file");
    for _ in &tensors {
        writer.write_tensor(&[0; 4]).expect("data");
    }
    writer.finish().expect("a whole file");
    let mut bytes = std::fs::read(&path).expect("a file");
    let name = b"a.in_sum2";
    let at = bytes.windows(name.len()).position(|part| part == name);
    let size = at.expect("the name") + name.len() + 4;
    bytes[size..size + 8].copy_from_slice(&(1u64 << 31).to_le_bytes());
    hole(&path, &bytes);
    refuses("importances", bytes.len(), || {
        let read = Importances::new(Gguf::open(&path)?)?;
        // A program compares the columns with those of its model before it reads them.
        assert_eq!(read.columns("a")?, Some(1 << 31));
        Err::<(), _>(waterline::Error::Cancelled { fed: 0 })
    });
}

/// Vocabularies, in directories with valid weights.
#[test]
fn costly_vocabularies_are_refused_at_a_small_cost() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hf_qwen2_sliding");
    let refuses_files = |what: &str, files: &[(&str, &[u8])]| {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["config.json", "model.safetensors"] {
            std::fs::copy(case.join(name), folder.path().join(name)).expect("a copy");
        }
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).expect("written");
        }
        let bytes = files.iter().map(|(_, bytes)| bytes.len()).sum();
        refuses(what, bytes, || {
            Model::open(folder.path())?.tokenizer().map(drop)
        });
    };
    let list = |before: &str, element: &str, count: usize, after: &str| {
        let mut text = before.to_string() + &element.repeat(count);
        text.truncate(text.len() - 1);
        (text + after).into_bytes()
    };
    let model = r#""model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"#;
    for (what, text) in [
        (
            "four million numbers",
            list("{\"a\":[", "0,", 4_100_000, "]}"),
        ),
        (
            "added tokens that are empty",
            list("{\"added_tokens\":[", "{},", 5 << 20, "]}"),
        ),
        (
            "added tokens that are numbers",
            list("{\"added_tokens\":[", "0,", 4_100_000, "]}"),
        ),
        (
            "added tokens without an end",
            list("{\"added_tokens\":[", "{\"content\":\"\"},", 1 << 20, "]}"),
        ),
        (
            "a long post-processor",
            list("{\"post_processor\":[", "0,", 7 << 20, "]}"),
        ),
        (
            "merges without an end",
            list(
                &format!("{{{model}\"merges\":["),
                "[\"a\",\"b\"],",
                1_400_000,
                "]}",
            ),
        ),
        (
            "merges of nothing",
            list(&format!("{{{model}\"merges\":["), "[],", 5 << 20, "]}}"),
        ),
        (
            "tokens without an end",
            list("{\"model\":{\"vocab\":{", "\"\":0,", 3 << 20, "}}}"),
        ),
        (
            "pieces without an end",
            list("{\"model\":{\"vocab\":[", "[\"\",0],", 2 << 20, "]}}"),
        ),
        (
            "scores without an end",
            list("{\"model\":{\"scores\":[", "0,", 7 << 20, "]}}"),
        ),
        (
            "switches without an end",
            list("{\"model\":{", "\"\":[],", 2 << 20, "}}"),
        ),
        (
            "steps without an end",
            list(
                "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[",
                "{\"type\":\"NFC\"},",
                1 << 20,
                "]}}",
            ),
        ),
    ] {
        refuses_files(what, &[("tokenizer.json", &text)]);
    }
    // Other files that hold vocabularies.
    let zeros = list("[", "0,", 7 << 20, "]");
    let (merges, small) = ("a b\n".repeat(4_000_000), br#"{"a":0,"b":1,"ab":2}"#);
    refuses_files(
        "a list as vocab.json",
        &[("vocab.json", &zeros), ("merges.txt", b"a b")],
    );
    refuses_files(
        "many merges",
        &[("vocab.json", small), ("merges.txt", merges.as_bytes())],
    );
    for name in [
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "generation_config.json",
    ] {
        refuses_files(
            name,
            &[
                ("vocab.json", small),
                ("merges.txt", b"a b"),
                (name, &zeros),
            ],
        );
    }
    refuses_files(
        "empty pieces",
        &[("tokenizer.model", &b"\x0a\x00".repeat(8_000_000))],
    );
    refuses_files(
        "control pieces",
        &[(
            "tokenizer.model",
            &b"\x0a\x04\x0a\x00\x18\x03".repeat(2_600_000),
        )],
    );
    let lines = format!("1 'a' 1\n{}15000000 'b' 1\n", "\n".repeat(15 << 20));
    refuses_files(
        "empty lines",
        &[("rwkv_vocab_v20230424.txt", lines.as_bytes())],
    );
    // Every text of up to 17 letters from an alphabet of two is a token, and every split of it is a merge.
    let (mut pairs, mut rank) = (String::new(), 0);
    for length in 1..18 {
        for letters in 0..1u32 << length {
            let letter = |place: u32| b'a' + (letters >> place & 1) as u8;
            let token: Vec<u8> = (0..length).map(letter).collect();
            writeln!(pairs, "{} {rank}", base64(&token)).expect("text");
            rank += 1;
        }
    }
    refuses_files(
        "merges of two letters",
        &[("tiktoken.model", pairs.as_bytes())],
    );
    let mut long = String::new();
    for rank in 0..45_000u32 {
        let token = [&rank.to_le_bytes()[..], &[b'a'; 240]].concat();
        writeln!(long, "{} {rank}", base64(&token)).expect("text");
    }
    refuses_files("long tokens", &[("tiktoken.model", long.as_bytes())]);

    // A valid GGUF file with another list of tokens.
    let folder = tempfile::tempdir().expect("a folder");
    let file = Gguf::open(case.join("../../models/gdn.gguf")).expect("a model");
    for (kind, key, tokens) in [
        ("gpt2", "tokens", vec![String::new(); 1_700_000]),
        ("llama", "tokens", vec![String::new(); 1_700_000]),
        (
            "rwkv",
            "tokens",
            (0..900_000).map(|i| format!("{i:x}")).collect(),
        ),
        ("gpt2", "merges", vec!["a b".to_string(); 1_300_000]),
    ] {
        let full = |key: &str| format!("tokenizer.ggml.{key}");
        let mut metadata: Vec<(String, Value)> = file.metadata().to_vec();
        metadata.push((full("model"), Value::from(kind)));
        if key != "tokens" {
            metadata.push((
                full("tokens"),
                Value::Array(Array::String(vec!["a".into()])),
            ));
        }
        metadata.push((full(key), Value::Array(Array::String(tokens))));
        let path = with_metadata(folder.path(), &file, &metadata);
        drop(metadata);
        refuses("many tokens of a GGUF file", length(&path), || {
            Model::open(&path)?.tokenizer().map(drop)
        });
    }
}

/// Writes a file with the tensors of another file and this metadata.
fn with_metadata(folder: &Path, file: &Gguf, metadata: &[(String, Value)]) -> PathBuf {
    let path = folder.join("model.gguf");
    let tensors = file.tensors().iter().map(|info| NewTensor {
        name: info.name.clone(),
        format: info.format().expect("a known format"),
        shape: info.shape.clone(),
    });
    let tensors: Vec<NewTensor> = tensors.collect();
    let mut writer = Writer::create(&path, metadata, &tensors).expect("a file");
    for info in file.tensors() {
        let tensor = file.tensor(&info.name).expect("a tensor");
        writer.write_tensor(&tensor.data).expect("a tensor");
    }
    writer.finish().expect("a whole file");
    path
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number = (0..3).fold(0u32, |sum, i| {
            sum << 8 | u32::from(*three.get(i).unwrap_or(&0))
        });
        for i in 0..4 {
            let letter = LETTERS[(number >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= three.len() { letter.into() } else { '=' });
        }
    }
    text
}
