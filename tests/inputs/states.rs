//! State files, and the files that say how a text becomes a vector.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use waterline::{
    EmbedOptions, Model, PrefixStore, PrefixStoreOptions, Session, StateFile, StateWriter,
};

use super::{SAVED, Saved, options, sealed, tests, tokenizer_seeds};

/// Tokens between two checkpoints, and of the text.
const SEGMENT: usize = 5;
const TEXT: [u32; 12] = [1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1, 7];

thread_local! {
    static STATES: Vec<Saved> = SAVED.iter().map(|case| save(case)).collect();
}

fn save(case: &str) -> Saved {
    let model = Model::open(tests().join("fixtures").join(case)).expect("a fixture opens");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("book.state");
    let mut session = Session::new(Arc::clone(&model), options()).expect("a session");
    let description = session.describe().expect("a description");
    let (mut writer, _) = StateWriter::begin(&path, &description).expect("a file");
    read(&mut session, &mut writer).expect("tokens");
    writer.finish().expect("a whole file");
    (model, std::fs::read(path).expect("a file"))
}

fn read(session: &mut Session, writer: &mut StateWriter) -> waterline::Result<()> {
    session.read_into(writer, &TEXT, SEGMENT, |_| ())
}

/// Uses a state file whose hashes are made right again: as one that is complete, and as one that a killed run has left. A file that
/// passes the check of all its segments must be the file of its text.
pub fn state(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    sealed::seal(&mut bytes);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("book.state");
    std::fs::write(&path, &bytes).expect("a file");
    let opened = StateFile::open(&path).and_then(|file| file.verify().map(|()| file));
    // The model with the file's fingerprint, or the first model.
    let name = |file: &StateFile| file.description().model.clone();
    let name = opened.as_ref().map(name).unwrap_or_default();
    let is_own = |model: &Model| model.fingerprint().is_ok_and(|it| it.to_string() == name);
    let (model, written) = STATES.with(|all| {
        let own = all.iter().find(|(model, _)| is_own(model));
        own.unwrap_or(&all[0]).clone()
    });
    continue_killed(&model, &path, &bytes);
    let Ok(file) = opened else {
        return false;
    };
    let mut options = options();
    let store = PrefixStore::new(PrefixStoreOptions::default());
    options.store = Some(store.expect("a store"));
    let mut session = Session::new(model, options).expect("a session");
    let records = file.records().len();
    let mut opens = |index| {
        let opened = session.open_state(&file, index);
        opened.is_ok() && session.feed(&[1, 2]).is_ok()
    };
    let is_accepted = (0..records).all(&mut opens);
    if (0..records).all(|index| session.check_segment(&file, index).is_ok()) {
        let (found, own) = (parts(&bytes), parts(&written));
        assert!(own.starts_with(&found), "a forged file passes the check");
    }
    file.note().expect("its hash is right");
    let longer = [file.tokens(), &[1, 2]].concat();
    if session.offer_state(Arc::new(file)).is_ok() {
        let _ = session.read_history(&longer);
    }
    session.reset().expect("an empty state");
    session.feed(&[1, 2, 3]).expect("tokens");
    is_accepted
}

/// Continues a run that a file says was killed.
fn continue_killed(model: &Arc<Model>, path: &Path, bytes: &[u8]) {
    let mut session = Session::new(Arc::clone(model), options()).expect("a session");
    let description = session.describe().expect("a description");
    std::fs::write(path.with_extension("state.partial"), bytes).expect("a file");
    let Ok((mut writer, found)) = StateWriter::begin(path, &description) else {
        return;
    };
    if let Some(found) = found {
        let last = found.records().len() - 1;
        if !TEXT.starts_with(found.tokens()) || session.open_state(&found, last).is_err() {
            return;
        }
    }
    if read(&mut session, &mut writer).is_ok() {
        writer.finish().expect("a whole file");
        StateFile::open(path).expect("a whole file");
    }
}

/// The parts that follow from the text: the numbers of each record, and the bytes of its tokens, rows, state and logits.
fn parts(file: &[u8]) -> Vec<(&[u8], &[u8])> {
    let records = sealed::records(file).into_iter();
    let part =
        |[head, .., logits, _]: [usize; 6]| (&file[head + 8..head + 40], &file[head + 256..logits]);
    records.map(part).collect()
}

pub fn state_seeds() -> Vec<Vec<u8>> {
    STATES.with(|all| all.iter().map(|(_, file)| file.clone()).collect())
}

/// The files of a directory of sentence-transformers.
const FILES: [&str; 3] = [
    "modules.json",
    "1_Pooling/config.json",
    "config_sentence_transformers.json",
];
/// Separates the files in one input.
const BETWEEN: &str = "\u{c}";

/// Uses these files of a model of embeddings.
pub fn modules(bytes: &[u8]) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let case = tests().join("fixtures/hf_qwen3_embed");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(case.join(name), path(name)).expect("a copy");
    }
    std::fs::write(path("tokenizer.json"), &tokenizer_seeds()[0]).expect("a file");
    std::fs::create_dir(path("1_Pooling")).expect("a folder");
    let parts = bytes.split(|&byte| [byte] == *BETWEEN.as_bytes());
    for (name, part) in FILES.into_iter().zip(parts) {
        std::fs::write(path(name), part).expect("a file");
    }
    let Ok(model) = Model::open(folder.path()) else {
        return false;
    };
    let mut session = Session::new(Arc::clone(&model), options()).expect("a session");
    let mut embed = |task| {
        let tokens = model.embedding_tokens("ab a", task);
        let vector = tokens.and_then(|tokens| session.embed(&tokens, &EmbedOptions::default()));
        vector.is_ok_and(|it| it.iter().all(|x| x.is_finite()))
    };
    embed(Some("query")) && embed(None)
}

pub fn modules_seeds() -> Vec<Vec<u8>> {
    let module = |path: &str, kind: &str| json!({"idx": 0, "name": "0", "path": path, "type": format!("sentence_transformers.models.{kind}")});
    let [model, pooling] = [module("", "Transformer"), module("1_Pooling", "Pooling")];
    let tasks =
        json!({"prompts": {"query": "a b", "document": ""}, "default_prompt_name": "document"});
    let seeds = [
        (
            json!([model, pooling, module("2_Normalize", "Normalize")]),
            json!({"pooling_mode_mean_tokens": true, "word_embedding_dimension": 64}),
        ),
        (
            json!([model, pooling]),
            json!({"pooling_mode": "lasttoken", "include_prompt": true}),
        ),
    ];
    let text = |(modules, mode): (Value, Value)| {
        [modules, mode, tasks.clone()]
            .map(|it| it.to_string())
            .join(BETWEEN)
    };
    seeds
        .into_iter()
        .map(|seed| text(seed).into_bytes())
        .collect()
}
