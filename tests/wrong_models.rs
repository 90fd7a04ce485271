//! Models that are almost right: each key of every fixture and every small GGUF file is renamed and given other values, each tensor is
//! renamed, added and changed. The result must be rejected, noted, or a different model: no mistake is accepted silently. WATERLINE_CASES
//! names a folder with more cases.

#[path = "wrong_models/no_effect.rs"]
mod no_effect;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use no_effect::{NO_EFFECT, NO_EFFECT_IN_GGUF, NO_EFFECT_IN_TENSORS};
use serde_json::{Map, Value};
use waterline::internal::Checkpoint;
use waterline::{Model, Session, SessionOptions};
use waterline_quant::gguf::{self, Gguf, NewTensor, Writer};

fn tests() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests")
}

/// Returns the entries of these folders for which `is` returns true.
fn entries(folders: &[PathBuf], is: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let read = |folder: &PathBuf| std::fs::read_dir(folder).expect("a folder");
    let all = folders.iter().flat_map(read);
    let mut all: Vec<PathBuf> = all.map(|entry| entry.expect("an entry").path()).collect();
    all.retain(|path| is(path));
    all.sort();
    all
}

/// Returns a name that matches no list of meaningless names, neither by its beginning nor by its end.
fn another(name: &str) -> String {
    format!("another_{name}_of_it")
}

/// Returns every fixture whose model opens.
fn cases() -> Vec<PathBuf> {
    let mut folders = vec![tests().join("fixtures")];
    folders.extend(std::env::var_os("WATERLINE_CASES").map(PathBuf::from));
    entries(&folders, |path| {
        path.join("config.json").exists() && Checkpoint::open(path).is_ok()
    })
}

/// Returns whether two checkpoints have the properties of the same model.
fn is_same(a: &Checkpoint, b: &Checkpoint) -> bool {
    let tensors = |checkpoint: &Checkpoint| {
        let weights = checkpoint.spec.weights().into_iter();
        weights
            .map(|weight| (checkpoint.tensors[&weight.name].data.to_vec(), weight.name))
            .collect::<Vec<_>>()
    };
    a.spec.to_json() == b.spec.to_json() && a.text == b.text && tensors(a) == tensors(b)
}

/// Returns whether a model with this unknown key is rejected, or opens with a note that names the key.
fn is_noticed(outcome: &waterline::Result<Checkpoint>, key: &str) -> bool {
    match outcome {
        Ok(checkpoint) => checkpoint.notes.iter().any(|note| note.contains(key)),
        Err(_) => true,
    }
}

/// Returns other values of the same type.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::Null => vec![true.into(), 1.into(), "other".into()],
        Value::Bool(value) => vec![(!value).into()],
        Value::Number(number) => match number.as_i64() {
            Some(n) => vec![
                (n + 1).into(),
                (2 * n).into(),
                (n / 2).into(),
                0.into(),
                (-1).into(),
            ],
            None => {
                let x = number.as_f64().unwrap_or(0.0);
                vec![(2.0 * x + 0.5).into(), (-1.0 - x).into(), 0.0.into()]
            }
        },
        Value::String(_) => vec!["other".into(), "".into()],
        Value::Array(values) => {
            let mut fewer = values.clone();
            fewer.pop();
            let mut first = values.clone();
            if let Some(value) = first.first_mut() {
                *value = others(value).swap_remove(0);
            }
            vec![fewer.into(), first.into(), Value::Array(Vec::new())]
        }
        // The keys of an object are tried one by one.
        Value::Object(_) => Vec::new(),
    }
}

/// Collects the paths of all keys, including those of inner objects.
fn keys(value: &Value, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let Value::Object(fields) = value else { return };
    for (key, value) in fields {
        path.push(key.clone());
        found.push(path.clone());
        keys(value, path, found);
        path.pop();
    }
}

fn inner<'a>(config: &'a mut Value, path: &[String]) -> &'a mut Map<String, Value> {
    let at = path.iter().fold(config, |at, key| &mut at[key]);
    at.as_object_mut().expect("an object")
}

/// A copy of a case whose configuration can be changed.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(case: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for entry in std::fs::read_dir(case).expect("a case") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name");
            if path.is_file() && name != "case.safetensors" {
                std::fs::copy(&path, folder.path().join(name)).expect("a copy");
            }
        }
        Folder(folder)
    }

    fn with_config(&self, config: &Value) -> waterline::Result<Checkpoint> {
        let text = config.to_string();
        std::fs::write(self.0.path().join("config.json"), text).expect("a file");
        Checkpoint::open(self.0.path())
    }

    fn with_weights(&self, bytes: &[u8]) -> waterline::Result<Checkpoint> {
        std::fs::write(self.0.path().join("model.safetensors"), bytes).expect("a file");
        Checkpoint::open(self.0.path())
    }
}

/// Results of changing a key's value, over all cases of a family.
#[derive(Default)]
struct Outcomes {
    refused: usize,
    different: usize,
    same: usize,
    /// Whether a value of another type is rejected, which shows that the key is read.
    read: bool,
}

/// Returns whether a pattern of the lists, in which one star matches anything, matches `name`.
fn is_known(lists: &[(&str, &str)], name: &str) -> bool {
    let mut patterns = lists.iter().flat_map(|(names, _)| names.split_whitespace());
    patterns.any(|pattern| match pattern.split_once('*') {
        Some((start, end)) => match end.split_once('*') {
            None => name.starts_with(start) && name.ends_with(end),
            Some((middle, end)) => {
                name.starts_with(start) && name.contains(middle) && name.ends_with(end)
            }
        },
        None => pattern == name,
    })
}

#[test]
fn a_key_that_is_renamed_is_noticed_and_one_with_another_value_is_refused_or_matters() {
    let mut all: BTreeMap<String, Outcomes> = BTreeMap::new();
    let mut renamed = 0;
    for case in cases() {
        let name = case.file_name().expect("a name").to_string_lossy();
        let config = std::fs::read(case.join("config.json")).expect("config.json");
        // Infinity is not JSON, so this test skips such a configuration.
        let Ok(config) = serde_json::from_slice::<Value>(&config) else {
            continue;
        };
        let (folder, mut paths) = (Folder::new(&case), Vec::new());
        let before = folder.with_config(&config).expect("it opens");
        let family = config["model_type"].as_str().unwrap_or_default();
        keys(&config, &mut Vec::new(), &mut paths);
        for path in &paths {
            let (key, outer) = path.split_last().expect("a key");
            let mut changed = config.clone();
            let fields = inner(&mut changed, outer);
            let value = fields.remove(key).expect("a value");
            fields.insert(another(key), value.clone());
            // A null key has no meaning, and an inner object that is never read may hold anything.
            if !value.is_null() && outer.is_empty() {
                let outcome = folder.with_config(&changed);
                assert!(
                    is_noticed(&outcome, &another(key)),
                    "{name}: {path:?}, renamed, is passed over"
                );
                renamed += 1;
            }
            let with = |other: Value| {
                let mut changed = config.clone();
                inner(&mut changed, outer).insert(key.clone(), other);
                folder.with_config(&changed)
            };
            let of_key = all.entry(format!("{family}: {}", path.join(".")));
            let of_key = of_key.or_default();
            for other in others(&value).into_iter().filter(|other| *other != value) {
                match with(other) {
                    Err(_) => of_key.refused += 1,
                    Ok(after) if !is_same(&before, &after) => of_key.different += 1,
                    Ok(_) => of_key.same += 1,
                }
            }
            of_key.read |= with(serde_json::json!({ "another": [[]] })).is_err();
        }
    }
    let sum = |count: fn(&Outcomes) -> usize| all.values().map(count).sum::<usize>();
    println!(
        "{} keys: {renamed} renamed and noticed; of other values {} refused, {} another model, {} the same",
        all.len(),
        sum(|o| o.refused),
        sum(|o| o.different),
        sum(|o| o.same),
    );
    let silent = |(_, o): &(&String, &Outcomes)| o.same > 0 && o.different == 0;
    let (read, listed): (Vec<_>, Vec<_>) = all.iter().filter(silent).partition(|(_, o)| o.read);
    let listed: BTreeSet<&str> = listed
        .iter()
        .filter_map(|(key, _)| key.split_once(": "))
        .map(|(_, key)| key)
        .collect();
    println!("listed as without a meaning: {listed:?}");
    let unknown = |(key, _): &(&String, &Outcomes)| {
        let mut known = NO_EFFECT.iter().flat_map(|(keys, _)| keys.split(", "));
        !known.any(|known| known == key.as_str())
    };
    let read: Vec<&String> = read
        .into_iter()
        .filter(unknown)
        .map(|(key, _)| key)
        .collect();
    assert!(read.is_empty(), "read, and nothing comes of {read:#?}");
}

/// A tensor in the header of a safetensors file.
struct Stored {
    name: String,
    dtype: String,
    start: usize,
    end: usize,
}

fn header(file: &[u8]) -> (Map<String, Value>, usize) {
    let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let header = serde_json::from_slice(&file[8..8 + length]).expect("a header");
    (header, 8 + length)
}

fn stored(header: &Map<String, Value>) -> Vec<Stored> {
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
    let number = |value: &Value| value.as_u64().expect("an offset") as usize;
    tensors
        .map(|(name, tensor)| Stored {
            name: name.clone(),
            dtype: tensor["dtype"].as_str().expect("a type").into(),
            start: number(&tensor["data_offsets"][0]),
            end: number(&tensor["data_offsets"][1]),
        })
        .collect()
}

fn with_header(header: &Map<String, Value>, data: &[u8]) -> Vec<u8> {
    let mut text = serde_json::to_vec(header).expect("JSON");
    text.resize(text.len().next_multiple_of(8), b' ');
    [&(text.len() as u64).to_le_bytes(), &text[..], data].concat()
}

/// Returns the logits after a hundred tokens, more than any case's window holds.
fn logits(checkpoint: Checkpoint) -> Vec<u32> {
    let model = Model::bind(checkpoint).expect("a model");
    let mut options = SessionOptions::default();
    (options.threads, options.chunk) = (1, 32);
    (options.state.context, options.state.history) = (128, 8);
    let vocab = model.spec().vocab;
    let mut session = Session::new(model, options).expect("a session");
    let tokens: Vec<u32> = (0..100).map(|i| ((i * 37 + 11) % vocab) as u32).collect();
    let mut all = Vec::new();
    session
        .feed_each(&tokens, |_, logits| {
            all.extend(logits.iter().map(|x| x.to_bits()))
        })
        .expect("tokens");
    all
}

#[test]
fn a_tensor_that_is_renamed_or_added_is_refused_and_one_with_other_values_matters() {
    let (mut refused, mut different, mut idle) = (0, 0, BTreeSet::new());
    for case in cases() {
        let name = case
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let Ok(file) = std::fs::read(case.join("model.safetensors")) else {
            continue;
        };
        let (folder, (header, at)) = (Folder::new(&case), header(&file));
        let data = &file[at..];
        let before = logits(folder.with_weights(&file).expect("it opens"));
        for tensor in stored(&header) {
            let what = format!("{name}: {}", tensor.name);
            let entry = header[&tensor.name].clone();
            let mut renamed = header.clone();
            renamed.remove(&tensor.name);
            renamed.insert(another(&tensor.name), entry.clone());
            let outcome = folder.with_weights(&with_header(&renamed, data));
            assert!(outcome.is_err(), "{what}, renamed, is accepted");

            // A copy of the tensor after the others: a tensor that is never used.
            let mut added = header.clone();
            let size = tensor.end - tensor.start;
            let mut copy = entry.clone();
            copy["data_offsets"] = serde_json::json!([data.len(), data.len() + size]);
            added.insert(another(&tensor.name), copy);
            let bytes = [data, &data[tensor.start..tensor.end]].concat();
            let outcome = folder.with_weights(&with_header(&added, &bytes));
            let said = outcome
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            assert!(
                said.contains(&another(&tensor.name)),
                "{what}, twice: {said:?}"
            );
            refused += 2;

            // Changes values by a quarter to a half, up or down.
            let (width, byte, bit) = match tensor.dtype.as_str() {
                "F32" => (4, 2, 0x40),
                "BF16" => (2, 0, 0x40),
                "F16" => (2, 1, 0x02),
                _ => continue,
            };
            let mut changed = file.clone();
            for value in changed[at + tensor.start..at + tensor.end].chunks_exact_mut(width) {
                value[byte] ^= bit;
            }
            match folder.with_weights(&changed) {
                Err(_) => refused += 1,
                Ok(after) => {
                    if logits(after) != before {
                        different += 1
                    } else {
                        idle.insert(tensor.name.clone());
                    }
                }
            }
        }
    }
    println!(
        "{refused} refused, {different} other models, {} names without an effect",
        idle.len()
    );
    idle.retain(|name| !is_known(NO_EFFECT_IN_TENSORS, name));
    assert!(idle.is_empty(), "nothing comes of {idle:?}");
}

/// Writes a GGUF file with this metadata and these tensor names.
fn write(path: &Path, file: &Gguf, metadata: &[(String, gguf::Value)], names: &[String]) {
    let tensor = |(i, info): (usize, &gguf::TensorInfo)| NewTensor {
        name: names[i].clone(),
        format: info.format().expect("a known format"),
        shape: info.shape.clone(),
    };
    let tensors: Vec<NewTensor> = file.tensors().iter().enumerate().map(tensor).collect();
    let mut writer = Writer::create(path, metadata, &tensors).expect("a file");
    for info in file.tensors() {
        let tensor = file.tensor(&info.name).expect("a tensor");
        writer.write_tensor(&tensor.data).expect("a tensor");
    }
    writer.finish().expect("a file");
}

#[test]
fn a_gguf_file_is_as_strict() {
    let mut folders = vec![tests().join("models"), tests().join("llama_cpp")];
    if let Some(more) = std::env::var_os("WATERLINE_GGUF") {
        folders.extend(entries(&[PathBuf::from(more)], Path::is_dir));
    }
    let files = entries(&folders, |path| path.extension() == Some("gguf".as_ref()));
    let room = tempfile::tempdir().expect("a folder");
    let path = room.path().join("changed.gguf");
    let (mut refused, mut different, mut silent) = (0, 0, BTreeSet::new());
    for source in files {
        let name = source
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let file = Gguf::open(&source).expect("a GGUF file");
        let Ok(before) = Checkpoint::open(&source) else {
            println!("{name} does not open");
            continue;
        };
        let architecture = file
            .get_str("general.architecture")
            .expect("a name")
            .to_string();
        let names: Vec<String> = file.tensors().iter().map(|t| t.name.clone()).collect();
        for i in 0..names.len() {
            let mut names = names.clone();
            names[i] = another(&names[i]);
            write(&path, &file, file.metadata(), &names);
            assert!(Checkpoint::open(&path).is_err(), "{name}: {}", names[i]);
            refused += 1;
        }
        for (i, (key, value)) in file.metadata().iter().enumerate() {
            let mut metadata = file.metadata().to_vec();
            if key.starts_with(&architecture) {
                metadata[i].0 += ".of_another";
                write(&path, &file, &metadata, &names);
                let outcome = Checkpoint::open(&path);
                let renamed = &metadata[i].0;
                assert!(
                    is_noticed(&outcome, renamed),
                    "{name}: {key}, renamed, is passed over"
                );
                refused += 1;
            }
            use gguf::Value as V;
            let other = match value {
                V::U32(n) => V::U32(n.wrapping_mul(2).wrapping_add(1)),
                V::I32(n) => V::I32(n.wrapping_mul(2).wrapping_add(1)),
                V::F32(x) => V::F32(2.0 * x + 0.5),
                V::Bool(is) => V::Bool(!is),
                V::String(_) => V::String("other".into()),
                _ => V::U32(7),
            };
            metadata = file.metadata().to_vec();
            metadata[i].1 = other;
            write(&path, &file, &metadata, &names);
            match Checkpoint::open(&path) {
                Err(_) => refused += 1,
                Ok(after) if !is_same(&before, &after) => different += 1,
                Ok(_) => drop(silent.insert(key.clone())),
            }
        }
    }
    println!(
        "{refused} refused, {different} other models; of these keys another value is the same model: {silent:?}"
    );
    silent.retain(|key| !is_known(NO_EFFECT_IN_GGUF, key));
    assert!(silent.is_empty(), "nothing comes of {silent:?}");
}
