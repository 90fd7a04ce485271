//! Files below 16 MB that are built to cost much: each is refused, in memory of less than eight times its size and 32 MB. A refusal
//! that takes very long is one that this test never ends with.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use waterline::{ChatTemplate, Model, Snapshot, Tokenizer};
use waterline_quant::gguf::{Array, Value, Writer};

/// The system's allocator, which counts the bytes in use.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST_IN_USE: AtomicUsize = AtomicUsize::new(0);

fn more(bytes: usize) {
    let now = IN_USE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST_IN_USE.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: everything is handed to the system's allocator; counting touches no memory that it manages.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: the caller's contract is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that a refusal may take besides eight times the file.
const FIXED: usize = 32 << 20;
const LARGEST: usize = 16 << 20;

/// `open` refuses a file of `bytes` bytes by a sentence, within the bounds of memory.
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

fn gguf(folder: &Path, metadata: &[(String, Value)]) -> std::path::PathBuf {
    let path = folder.join("model.gguf");
    let writer = Writer::create(&path, metadata, &[]).expect("a file");
    writer.finish().expect("a whole file");
    path
}

fn length(path: &Path) -> usize {
    std::fs::metadata(path).expect("a file").len() as usize
}

/// A GGUF file of nothing but tensors without data.
fn tensors(folder: &Path, count: u64) -> std::path::PathBuf {
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
            // One that is accepted may cost no more.
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
