//! Runs untrusted bytes, with one function for each kind of file and one for calls from C: the result must be an error or a model that
//! runs, never a panic. The mutation test and the fuzz targets share this module, so that an input found by one is a test of the other.

mod answers;
mod calls;
mod parts;
#[path = "../sealed/mod.rs"]
mod sealed;
mod states;
#[path = "../../quant/tests/stored/mod.rs"]
mod stored;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use serde_json::Value;
use waterline::internal::{Bytes, Checkpoint, checkpoint_id, seal_checkpoint};
use waterline::{
    ChatTemplate, Message, Model, OpenOptions, PrefixStore, PrefixStoreOptions, Role, Session,
    SessionOptions, Snapshot, Tokenizer,
};

/// A kind of input file.
pub struct Kind {
    pub name: &'static str,
    /// Whether its files are text.
    pub is_text: bool,
    /// Returns valid files.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Uses a file; returns whether it was accepted.
    pub use_it: fn(&[u8]) -> bool,
}

/// All kinds.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "gguf",
        is_text: false,
        seeds: gguf_seeds,
        use_it: gguf,
    },
    Kind {
        name: "safetensors",
        is_text: false,
        seeds: safetensors_seeds,
        use_it: safetensors,
    },
    Kind {
        name: "config",
        is_text: true,
        seeds: config_seeds,
        use_it: config,
    },
    Kind {
        name: "tokenizer",
        is_text: true,
        seeds: tokenizer_seeds,
        use_it: tokenizer,
    },
    Kind {
        name: "template",
        is_text: true,
        seeds: template_seeds,
        use_it: template,
    },
    Kind {
        name: "snapshot",
        is_text: false,
        seeds: snapshot_seeds,
        use_it: snapshot,
    },
    Kind {
        name: "prefix",
        is_text: false,
        seeds: prefix_seeds,
        use_it: prefix,
    },
    Kind {
        name: "state",
        is_text: false,
        seeds: states::state_seeds,
        use_it: states::state,
    },
    Kind {
        name: "modules",
        is_text: true,
        seeds: states::modules_seeds,
        use_it: states::modules,
    },
    Kind {
        name: "split",
        is_text: false,
        seeds: parts::split_seeds,
        use_it: parts::split,
    },
    Kind {
        name: "packed",
        is_text: false,
        seeds: parts::packed_seeds,
        use_it: parts::packed,
    },
    Kind {
        name: "imatrix",
        is_text: false,
        seeds: parts::imatrix_seeds,
        use_it: parts::imatrix,
    },
    Kind {
        name: "formats",
        is_text: false,
        seeds: parts::formats_seeds,
        use_it: parts::formats,
    },
    Kind {
        name: "answer",
        is_text: false,
        seeds: answers::answer_seeds,
        use_it: answers::answer,
    },
    Kind {
        name: "history",
        is_text: true,
        seeds: answers::history_seeds,
        use_it: answers::history,
    },
    Kind {
        name: "calls",
        is_text: false,
        seeds: calls::calls_seeds,
        use_it: calls,
    },
];

pub use calls::calls;

/// The maximum state of a session that is made: a valid description may need more.
const MOST_STATE: usize = 64 << 20;

fn tests() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = here.ancestors().map(|folder| folder.join("tests"));
    let found = folders.find(|tests| tests.join("fixtures").is_dir());
    found.expect("the tests lie in the repository")
}

fn read(path: &str) -> Vec<u8> {
    std::fs::read(tests().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn options() -> SessionOptions {
    let mut options = SessionOptions::default();
    (options.state.context, options.state.history) = (16, 8);
    (options.chunk, options.threads) = (4, 1);
    options
}

/// Runs an accepted model on a few tokens.
fn runs(checkpoint: waterline::Result<Checkpoint>) -> bool {
    let Ok(model) = checkpoint.and_then(Model::bind) else {
        return false;
    };
    let plan = Session::plan(&model, &options());
    if plan.is_ok_and(|plan| plan.state_bytes.saturating_add(plan.work_bytes) <= MOST_STATE) {
        let session = Session::new(model, options());
        let _ = session.and_then(|mut session| session.feed(&[0, 1, 2, 3, 1, 2]));
    }
    true
}

/// Uses a GGUF file: its model and its vocabulary.
pub fn gguf(bytes: &[u8]) -> bool {
    let options = OpenOptions {
        allow_unused: true,
        ..OpenOptions::default()
    };
    let Ok(bytes) = Bytes::copy_from(bytes) else {
        return false;
    };
    let _ = Checkpoint::from_bytes(bytes.clone(), "fuzz", &OpenOptions::default());
    runs(Checkpoint::from_bytes(bytes, "fuzz", &options))
}

fn gguf_seeds() -> Vec<Vec<u8>> {
    let names = ["gdn", "lalte", "hax-mamba2", "mamba2"];
    let own = names.map(|name| tests().join(format!("models/{name}.gguf")));
    let more = folders("WATERLINE_GGUF", "model.gguf");
    let more = more.into_iter().map(|folder| folder.join("model.gguf"));
    let files = own.into_iter().chain(more);
    files
        .map(|path| std::fs::read(path).expect("a model"))
        .collect()
}

/// The folders with this file in the folder that an environment variable names.
fn folders(variable: &str, file: &str) -> Vec<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    named.map_or_else(Vec::new, |folder| folders_in(&folder, file))
}

fn folders_in(folder: &Path, file: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut found: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    found.retain(|path| path.join(file).is_file());
    found.sort();
    found
}

/// A model in a folder, whose configuration or weights are mutated.
struct Case {
    folder: PathBuf,
    model_type: String,
    tensors: BTreeSet<String>,
}

/// The first case of each `model_type`, of the fixtures and of the folder WATERLINE_CASES.
static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let mut all: Vec<Case> = Vec::new();
    let fixtures = folders_in(&tests().join("fixtures"), "model.safetensors");
    for folder in [fixtures, folders("WATERLINE_CASES", "model.safetensors")].concat() {
        let read = |file: &str| std::fs::read(folder.join(file)).unwrap_or_default();
        let model_type = model_type(&read("config.json"));
        let is_new = all.iter().all(|case| case.model_type != model_type);
        if !model_type.is_empty() && is_new && Checkpoint::open(&folder).is_ok() {
            let tensors = tensor_names(&read("model.safetensors"));
            all.push(Case {
                folder,
                model_type,
                tensors,
            });
        }
    }
    all
});

/// The `model_type` of a configuration; empty if it has none.
fn model_type(config: &[u8]) -> String {
    let config: Value = serde_json::from_slice(config).unwrap_or_default();
    config["model_type"].as_str().unwrap_or_default().into()
}

/// The names in the header of a safetensors file.
fn tensor_names(file: &[u8]) -> BTreeSet<String> {
    let header = file.split_first_chunk().and_then(|(length, rest)| {
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        serde_json::from_slice::<Value>(rest.get(..length)?).ok()
    });
    let header = header.as_ref().and_then(Value::as_object);
    header.into_iter().flat_map(|h| h.keys().cloned()).collect()
}

/// Uses a copy of a case's folder in which the file `name` holds `bytes`.
fn folder(case: &Case, name: &str, bytes: &[u8]) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        let to = folder.path().join(file);
        if file == name {
            std::fs::write(to, bytes).expect("a file")
        } else {
            std::fs::copy(case.folder.join(file), to).expect("a copy");
        }
    }
    let options = OpenOptions {
        allow_unused: true,
        ..OpenOptions::default()
    };
    let _ = Checkpoint::open(folder.path());
    runs(Checkpoint::open_with(folder.path(), &options))
}

/// The case with the most tensors of these names.
fn case_of(names: &BTreeSet<String>) -> &'static Case {
    let common = |case: &&Case| {
        let both = case.tensors.intersection(names).count();
        2 * both as isize - case.tensors.len() as isize
    };
    CASES.iter().max_by_key(common).expect("a case")
}

/// Uses the safetensors file of a folder, with the configuration of the case that it fits best.
pub fn safetensors(bytes: &[u8]) -> bool {
    folder(case_of(&tensor_names(bytes)), "model.safetensors", bytes)
}

fn safetensors_seeds() -> Vec<Vec<u8>> {
    // Some families have tensors of the same names.
    let is_own = |case: &&Case| case_of(&case.tensors).folder == case.folder;
    let files = CASES.iter().filter(is_own);
    files
        .map(|case| std::fs::read(case.folder.join("model.safetensors")).expect("weights"))
        .collect()
}

/// Uses a configuration, with the weights of the case of its `model_type`.
pub fn config(bytes: &[u8]) -> bool {
    let found = model_type(bytes);
    let mut cases = CASES.iter();
    let case = cases.find(|case| case.model_type == found);
    folder(case.unwrap_or(&CASES[0]), "config.json", bytes)
}

fn config_seeds() -> Vec<Vec<u8>> {
    let config = |case: &Case| std::fs::read(case.folder.join("config.json")).expect("a file");
    CASES.iter().map(config).collect()
}

/// Uses a `tokenizer.json`.
pub fn tokenizer(bytes: &[u8]) -> bool {
    let Ok(tokenizer) = Tokenizer::from_json(bytes, "fuzz") else {
        return false;
    };
    for text in [
        "",
        "ab <s> a",
        "\u{e9}\u{301}\u{1f525} \0\u{1}123 ''aaaaaaaab\n\n",
    ] {
        if let Ok(ids) = tokenizer.encode(text) {
            ids.iter()
                .for_each(|&id| assert!(tokenizer.token_bytes(id).len() < 1 << 20));
        }
    }
    true
}

fn tokenizer_seeds() -> Vec<Vec<u8>> {
    let added = r#"[{"id":5,"content":"<s>","single_word":false,"lstrip":false,"rstrip":true,"normalized":false,"special":true}]"#;
    let bpe = r#"{"type":"BPE","unk_token":"?","byte_fallback":true,"continuing_subword_prefix":"","vocab":{"a":0,"b":1,"ab":2,"?":3," ":4},"merges":[["a","b"]]}"#;
    let word = r#"{"type":"WordPiece","unk_token":"?","continuing_subword_prefix":"\#\#","max_input_chars_per_word":9,"vocab":{"a":0,"b":1,"ab":2,"?":3,"\#\#b":4}}"#
        .replace("\\#", "#");
    let unigram = r#"{"type":"Unigram","unk_id":0,"byte_fallback":false,"vocab":[["?",0.0],["a",-1.0],["b",-2.0],["ab",-1.5],[" ",-3.0]]}"#;
    let normalizer = r##"{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Replace","pattern":{"Regex":"a{2}"},"content":"a"},{"type":"Prepend","prepend":"_"},{"type":"Strip","strip_left":true,"strip_right":false},{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true}]}"##;
    let splits = r#"{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"[a-z]+|\\s+"},"behavior":"Isolated","invert":false},{"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}]}"#;
    let spaces = r#"{"type":"Metaspace","replacement":"_","prepend_scheme":"always","split":true}"#;
    let after = r#"{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"<s>":{"id":"<s>","ids":[5],"tokens":["<s>"]}}}"#;
    let decoder = r#"{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"_"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}"#;
    [
        (bpe, normalizer, splits),
        (&word, "null", spaces),
        (unigram, normalizer, spaces),
    ]
    .iter()
    .map(|(model, normalizer, splits)| {
        format!(
            r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":{added},"normalizer":{normalizer},"pre_tokenizer":{splits},"post_processor":{after},"decoder":{decoder},"model":{model}}}"#
        )
        .into_bytes()
    })
    .collect()
}

/// Uses a chat template.
pub fn template(bytes: &[u8]) -> bool {
    let Ok(source) = std::str::from_utf8(bytes) else {
        return false;
    };
    let Ok(template) = ChatTemplate::new(source, "<s>", "</s>") else {
        return false;
    };
    let mut messages = vec![
        Message::new(Role::System, "Be brief."),
        Message::new(Role::User, "a <b> {{ c }}"),
        Message::new(Role::Assistant, "d\n"),
        Message::new(Role::User, ""),
    ];
    let _ = template.render(&messages, true);
    // As agents send them.
    let more = r#"[{"role": "assistant", "content": null, "reasoning_content": "<s>é", "tool_calls": [{"id": "c1", "function":
        {"name": "f", "arguments": "{\"x\": [1.5, \"</s>\"]}"}}, {"function": {"name": "g", "arguments": "{\"cut"}}]},
        {"role": "tool", "content": {"t": 3}}, {"role": "user", "content": [{"type": "text", "text": "<think>"}]}]"#;
    messages.extend(serde_json::from_str::<Vec<Message>>(more).expect("messages"));
    let _ = template.render(&messages, true);
    true
}

fn template_seeds() -> Vec<Vec<u8>> {
    let folder = tests().join("../runtime/text/tests/data/templates");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the templates")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "jinja"))
        .collect();
    files.sort();
    let mut seeds: Vec<Vec<u8>> = files
        .iter()
        .map(|path| std::fs::read(path).expect("a template"))
        .collect();
    seeds.push(
        b"{% macro m(t) %}{{ t[1:]|replace('a', 'b')|tojson }}{{ caller(t) if caller }}{% endmacro %}{% for m in messages %}{% call(x) \
          m(m.content or '') %}{{ '%s-%r' % (x, m) }}{% for c in m.tool_calls or [] recursive %}{{ loop(c.values()) if c is mapping else c }}\
          {% endfor %}{% endcall %}{{ (m.content|string).split('<')|map('upper')|join(x) }}{% endfor %}"
            .to_vec(),
    );
    seeds.push(
        b"{% for m in messages %}{{ m.role ~ ': ' ~ m.content | trim }}{% endfor %}{% set n = namespace(x=0) %}{% macro f(a, b=2) \
          %}{{ a * b }}{% endmacro %}{{ f(3) }}{{ [1, 2] | join(',') }}{{ 'a' | replace('a', 'b') }}{{ range(3) | list | length }}"
            .to_vec(),
    );
    seeds
}

/// Fixtures whose sessions are mutated, one for each kind of state.
const SAVED: [&str; 7] = [
    "hax_mamba_argmax_ks_stream",
    "gdn_swa",
    "hf_qwen3_5_moe_fused",
    "lalte_stream_gqa",
    "lansa",
    "mom_k2",
    "transformer_full",
];

/// A model, and a session on it as file bytes.
type Saved = (Arc<Model>, Vec<u8>);

fn save(case: &str) -> Saved {
    let model = Model::open(tests().join("fixtures").join(case)).expect("a fixture opens");
    let mut session = Session::new(Arc::clone(&model), options()).expect("a session");
    session.feed(&[1, 2, 3, 4, 5, 6]).expect("tokens");
    let mut file = Vec::new();
    let snapshot = session.snapshot().expect("a snapshot");
    snapshot.write(&mut file).expect("memory");
    (model, file)
}

thread_local! {
    static SESSIONS: Vec<Saved> = SAVED.iter().map(|case| save(case)).collect();
}

/// Uses a saved session. Its checksum is recomputed, because otherwise every mutation would be rejected.
pub fn snapshot(bytes: &[u8]) -> bool {
    let mut file = bytes.to_vec();
    if let Some(end) = file.len().checked_sub(4) {
        let sum = crc32fast::hash(&file[..end]);
        file[end..].copy_from_slice(&sum.to_le_bytes());
    }
    let Ok(snapshot) = Snapshot::read(&mut &file[..], file.len() as u64, "fuzz") else {
        return false;
    };
    // The model with the file's fingerprint, or the first model.
    let model = SESSIONS.with(|all| {
        let mut own = all
            .iter()
            .filter(|(_, saved)| saved.get(8..40) == file.get(8..40));
        Arc::clone(&own.next().unwrap_or(&all[0]).0)
    });
    let mut session = Session::new(model, options()).expect("a session");
    session.restore(&snapshot).is_ok() && session.feed(&[1, 2, 3, 4, 5]).is_ok()
}

fn snapshot_seeds() -> Vec<Vec<u8>> {
    SESSIONS.with(|all| all.iter().map(|(_, file)| file.clone()).collect())
}

/// Uses a checkpoint file in a store's directory, with a recomputed checksum and hash by the directory's key.
pub fn prefix(bytes: &[u8]) -> bool {
    let mut file = bytes.to_vec();
    if let Some(end) = prefix_head(&file) {
        let sum = crc32fast::hash(&file[..end]);
        file[end..end + 4].copy_from_slice(&sum.to_le_bytes());
    }
    let folder = tempfile::tempdir().expect("a folder");
    drop(session_with_store(
        SESSIONS.with(|all| Arc::clone(&all[0].0)),
        folder.path(),
    ));
    let key = std::fs::read(folder.path().join("key")).expect("the key");
    seal_checkpoint(&mut file, &key);
    let Some(id) = checkpoint_id(&file) else {
        return false;
    };
    std::fs::write(folder.path().join(format!("{id:016x}.prefix")), &file).expect("a file");
    let model = SESSIONS.with(|all| {
        let mut own = all
            .iter()
            .filter(|(_, saved)| saved.get(8..40) == file.get(8..40));
        Arc::clone(&own.next().unwrap_or(&all[0]).0)
    });
    let mut session = session_with_store(model, folder.path());
    let longer = [&prefix_tokens()[..], &[1]].concat();
    let read = session.read_history(&longer).expect("a history is read");
    session.feed(&[1, 2, 3, 4, 5]).is_ok() && read.reused > 0
}

/// Returns the offset of the head's checksum, which follows the magic number, the fingerprint, seven numbers, the pieces (the fifth number is their count)
/// and the tokens.
fn prefix_head(file: &[u8]) -> Option<usize> {
    let number = |at: usize| -> Option<usize> {
        let bytes = file.get(at..at.checked_add(8)?)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    };
    let pieces = number(72).filter(|&pieces| pieces <= 1000)?;
    let mut end = 96 + 24 * pieces;
    for piece in 0..pieces {
        end = number(96 + 24 * piece)?.checked_mul(4)?.checked_add(end)?;
    }
    (end.checked_add(4)? <= file.len()).then_some(end)
}

fn prefix_tokens() -> Vec<u32> {
    (1..=20).collect()
}

fn session_with_store(model: Arc<Model>, folder: &Path) -> Session {
    let mut store = PrefixStoreOptions::default();
    (store.grid, store.directory) = (8, Some(folder.to_path_buf()));
    let mut options = options();
    // After the history a test reads one token, and then five more.
    options.state.context = options.state.context.max(prefix_tokens().len() + 8);
    options.store = Some(PrefixStore::new(store).expect("a store"));
    Session::new(model, options).expect("a session")
}

fn prefix_seeds() -> Vec<Vec<u8>> {
    let models: Vec<Arc<Model>> =
        SESSIONS.with(|all| all.iter().map(|(model, _)| Arc::clone(model)).collect());
    let seed = |model: Arc<Model>| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut session = session_with_store(model, folder.path());
        session
            .read_history(&prefix_tokens())
            .expect("a history is read");
        // The last user of a store waits until its files are written.
        drop(session);
        let mut files = std::fs::read_dir(folder.path()).expect("the folder");
        let file = files.find_map(|file| {
            let path = file.expect("an entry").path();
            (!path.ends_with("key")).then_some(path)
        });
        std::fs::read(file.expect("a checkpoint")).expect("a file")
    };
    models.into_iter().map(seed).collect()
}
