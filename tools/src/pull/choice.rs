//! Chooses the files of a repository that make up the named model.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use super::hub::File;
use crate::error::{Error, Result};
use crate::text::{shown, shown_line};
use crate::units::bytes;

/// The files to download.
#[derive(Debug)]
pub struct Choice {
    pub files: Vec<File>,
    /// The GGUF file that opens the model; `None` if the model is the directory.
    pub path: Option<String>,
    /// A note on the choice, if the user named no file.
    pub note: Option<String>,
}

/// Endings of the files in a Hugging Face directory from which a model is opened, and the vocabularies among its texts.
const DIRECTORY: [&str; 5] = [".json", ".safetensors", ".jinja", ".model", ".txt"];
/// Names of formats that are not quantized.
const PLAIN: [&str; 3] = ["F32", "BF16", "F16"];

/// Chooses the file that matches `wanted`, or else a file that fits into memory.
pub fn choose(name: &str, files: &[File], wanted: Option<&str>) -> Result<Choice> {
    let models: Vec<Model> = models(files);
    if let Some(wanted) = wanted {
        let Some(found) = named(&models, files, wanted) else {
            let names: Vec<&str> = models.iter().map(|model| model.name()).collect();
            return Err(Error::usage(shown(&format!(
                "{name}: no GGUF file is called {wanted:?}; there are: {}",
                names.join(", ")
            ))));
        };
        if let Some(missing) = found.missing() {
            let (part, of) = (missing + 1, found.count);
            return Err(Error::usage(shown(&format!(
                "{name}: {}: part {part} of {of} is not listed",
                found.name()
            ))));
        }
        return Ok(found.choice(None));
    }
    let whole: Vec<&Model> = models.iter().filter(|m| m.missing().is_none()).collect();
    if !whole.is_empty() {
        return Ok(fitting(&whole, free_memory()));
    }
    if !models.is_empty() {
        return Err(Error::usage(format!(
            "{name}: of each of its GGUF files a part is not listed"
        )));
    }
    let needed = directory(files);
    if !needed.is_empty() {
        Ok(Choice {
            files: needed,
            path: None,
            note: None,
        })
    } else {
        Err(Error::usage(format!(
            "{name}: it holds neither GGUF nor safetensors files"
        )))
    }
}

/// The files of a Hugging Face directory; none if it has no weights.
pub fn directory(files: &[File]) -> Vec<File> {
    let is_needed = |file: &&File| {
        DIRECTORY.iter().any(|end| file.name.ends_with(end)) && !file.name.contains('/')
    };
    let mut needed: Vec<File> = files.iter().filter(is_needed).cloned().collect();
    if !needed
        .iter()
        .any(|file| file.name.ends_with(".safetensors"))
    {
        needed.clear();
    }
    needed
}

/// A GGUF file, or the listed parts of a split one.
#[derive(Clone)]
pub struct Model {
    /// The parts by their numbers, from 0.
    parts: BTreeMap<usize, File>,
    count: usize,
}

impl Model {
    fn of(file: &File) -> Self {
        Model {
            parts: BTreeMap::from([(0, file.clone())]),
            count: 1,
        }
    }

    /// The name of the first listed part.
    pub fn name(&self) -> &str {
        self.parts.values().next().map_or("", |file| &file.name)
    }

    /// The listed parts.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.parts.values()
    }

    /// The number of a part that is not listed, if there is one.
    pub fn missing(&self) -> Option<usize> {
        (self.parts.len() != self.count)
            .then(|| (0..self.count).find(|part| !self.parts.contains_key(part)))?
    }

    fn size(&self) -> u64 {
        let sizes = self.parts.values().map(|file| file.size.unwrap_or(0));
        sizes.fold(0, u64::saturating_add)
    }

    fn choice(&self, note: Option<String>) -> Choice {
        Choice {
            files: self.files().cloned().collect(),
            path: Some(self.name().into()),
            note,
        }
    }
}

/// The GGUF files that are language models, with the parts of each together.
pub fn models(files: &[File]) -> Vec<Model> {
    let mut models: Vec<Model> = Vec::new();
    let mut splits: HashMap<(&str, usize), usize> = HashMap::new();
    for file in files.iter().filter(|file| is_model(&file.name)) {
        let Some((stem, part, count)) = split(&file.name) else {
            models.push(Model::of(file));
            continue;
        };
        let index = *splits.entry((stem, count)).or_insert_with(|| {
            let parts = BTreeMap::new();
            models.push(Model { parts, count });
            models.len() - 1
        });
        models[index].parts.insert(part, file.clone());
    }
    models
}

/// Whether a file is a language model: neither a projector of images, nor a block for drafts, nor an importance matrix.
fn is_model(name: &str) -> bool {
    let lower = name.to_lowercase();
    let base = lower.rsplit('/').next().unwrap_or(&lower);
    let Some(stem) = base.strip_suffix(".gguf") else {
        return false;
    };
    let mut words = stem.split(|c: char| !c.is_ascii_alphanumeric());
    let is_draft = words.next() == Some("mtp") || words.next_back() == Some("mtp");
    !is_draft && !["mmproj", "imatrix"].iter().any(|part| stem.contains(part))
}

/// The model with the file `wanted`, or else with this word in its name, or with this part of a name.
fn named<'a>(models: &'a [Model], files: &[File], wanted: &str) -> Option<Cow<'a, Model>> {
    let has_file = |model: &&Model| model.files().any(|file| file.name == wanted);
    if let Some(model) = models.iter().find(has_file) {
        return Some(Cow::Borrowed(model));
    }
    // A file that is no model is chosen by its whole name only.
    if let Some(file) = files.iter().find(|file| file.name == wanted)
        && wanted.ends_with(".gguf")
    {
        return Some(Cow::Owned(Model::of(file)));
    }
    let find = |matches: fn(&str, &str) -> bool| {
        let found = models.iter().find(|model| matches(model.name(), wanted));
        found.map(Cow::Borrowed)
    };
    find(has_word).or_else(|| find(has_part))
}

/// Whether a name has this word, in any case. Q4_K is no word of Q4_K_M.
pub fn has_word(name: &str, word: &str) -> bool {
    let ends =
        |c: Option<char>, more: &str| c.is_none_or(|c| !c.is_alphanumeric() && !more.contains(c));
    occurs(name, word, |before, after| {
        ends(before, "") && ends(after, "_")
    })
}

/// Whether a name has this part, in any case. F16 is no part of BF16, nor Q4 of IQ4.
fn has_part(name: &str, part: &str) -> bool {
    occurs(name, part, |before, _| !matches!(before, Some('b' | 'i')))
}

/// Whether a part of a name is found between characters that `is_end` allows before and after it.
fn occurs(name: &str, part: &str, is_end: impl Fn(Option<char>, Option<char>) -> bool) -> bool {
    let (name, part) = (name.to_lowercase(), part.to_lowercase());
    name.match_indices(&part).any(|(at, found)| {
        let before = name[..at].chars().next_back();
        is_end(before, name[at + found.len()..].chars().next())
    })
}

/// Chooses the largest quantization that takes at most half of the free memory, or else the smallest file.
fn fitting(models: &[&Model], free: Option<u64>) -> Choice {
    let mut models = models.to_vec();
    models.sort_by_key(|model| model.size());
    let is_plain = |model: &&Model| {
        let name = model.name().to_uppercase();
        PLAIN.iter().any(|plain| name.contains(plain))
    };
    let fits = |model: &&Model| free.is_none_or(|free| model.size() <= free / 2);
    let quantized = models.iter().rev().filter(|model| !is_plain(model));
    let chosen = quantized.copied().find(fits).unwrap_or(models[0]);
    let free = match free {
        Some(free) => format!(
            "fits into half of the free memory ({})",
            bytes(free as usize)
        ),
        None => "the free memory is unknown".into(),
    };
    let (name, size) = (chosen.name(), bytes(chosen.size() as usize));
    let note = format!("{}: {size}; {free}", shown_line(name, usize::MAX));
    chosen.choice((models.len() > 1).then_some(note))
}

/// The name of a GGUF file without its ending and the number of its part; other names as they are.
pub fn stem(name: &str) -> &str {
    let stem = split(name).map(|(stem, ..)| stem);
    stem.or(name.strip_suffix(".gguf")).unwrap_or(name)
}

/// Splits `stem-00001-of-00003.gguf` into stem, number from 0, and count.
fn split(name: &str) -> Option<(&str, usize, usize)> {
    let (stem, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = stem.rsplit_once('-')?;
    let (number, count): (usize, usize) = (number.parse().ok()?, count.parse().ok()?);
    (1..=count)
        .contains(&number)
        .then(|| (stem, number - 1, count))
}

/// Bytes of memory available to programs, if Linux reports it.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, u64)]) -> Vec<File> {
        let file = |&(name, size): &(&str, u64)| File {
            name: name.into(),
            size: Some(size),
            blob: "b".into(),
        };
        list.iter().map(file).collect()
    }

    fn chosen(files: &[File], free: u64) -> Choice {
        let models = models(files);
        let whole: Vec<&Model> = models.iter().collect();
        fitting(&whole, Some(free))
    }

    fn path(list: &[(&str, u64)], wanted: &str) -> Option<String> {
        choose("a/b", &files(list), Some(wanted)).ok()?.path
    }

    #[test]
    fn the_largest_quantization_that_fits_is_chosen_with_all_its_parts() {
        let all = files(&[
            ("m-BF16.gguf", 160),
            ("m-Q4_K_M.gguf", 40),
            ("m-Q8_0-00001-of-00002.gguf", 50),
            ("m-Q8_0-00002-of-00002.gguf", 30),
            ("mmproj-F16.gguf", 1),
            ("imatrix_unsloth.gguf", 2),
            ("m.imatrix.gguf", 2),
            ("mtp-m-Q8_0.gguf", 2),
            ("MTP/mtp-m.gguf", 2),
            ("m-mtp.gguf", 2),
        ]);
        let path = |free| chosen(&all, free).path.unwrap();
        assert_eq!(path(1000), "m-Q8_0-00001-of-00002.gguf");
        assert_eq!(chosen(&all, 1000).files.len(), 2);
        assert_eq!(path(100), "m-Q4_K_M.gguf");
        assert_eq!(path(10), "m-Q4_K_M.gguf");
        let named = choose("a/b", &all, Some("bf16")).unwrap();
        assert_eq!(
            (named.path.unwrap(), named.files.len()),
            ("m-BF16.gguf".into(), 1)
        );
        let error = choose("a/b", &all, Some("Q2_K")).unwrap_err();
        assert!(error.to_string().contains("m-Q4_K_M.gguf"), "{error}");
        let later = choose("a/b", &all, Some("m-Q8_0-00002-of-00002.gguf")).unwrap();
        assert_eq!(later.path.unwrap(), "m-Q8_0-00001-of-00002.gguf");
        assert_eq!(later.files.len(), 2);
        let folder = files(&[
            ("config.json", 1),
            ("model.safetensors", 9),
            ("README.md", 1),
            ("rwkv_vocab_v20230424.txt", 1),
            ("tokenizer.model", 1),
            ("vocab.json", 1),
            ("merges.txt", 1),
        ]);
        let chosen = choose("a/b", &folder, None).unwrap();
        assert_eq!((chosen.path, chosen.files.len()), (None, 6));
        assert!(choose("a/b", &files(&[("README.md", 1)]), None).is_err());
    }

    #[test]
    fn a_name_means_a_word_before_it_means_a_part() {
        let types = [("m-BF16.gguf", 1), ("m-IQ4_XS.gguf", 1)];
        assert_eq!(path(&types, "F16"), None);
        assert_eq!(path(&types, "Q4_XS"), None);
        assert_eq!(path(&types, "iq4").as_deref(), Some("m-IQ4_XS.gguf"));
        let types = [("m-BF16.gguf", 1), ("m_F16.gguf", 1)];
        assert_eq!(path(&types, "f16").as_deref(), Some("m_F16.gguf"));
        let types = [("m-Q4_K_M.gguf", 1), ("m-Q4_K.gguf", 1)];
        assert_eq!(path(&types, "Q4_K").as_deref(), Some("m-Q4_K.gguf"));
        assert_eq!(path(&types[..1], "Q4_K").as_deref(), Some("m-Q4_K_M.gguf"));
        let spaces = [("my model Q8_0.gguf", 1)];
        assert_eq!(path(&spaces, "model q8_0"), Some(spaces[0].0.into()));
        let drafts = [("mtp-m.gguf", 1), ("m-Q8_0.gguf", 1)];
        assert_eq!(path(&drafts, "mtp-m.gguf").as_deref(), Some("mtp-m.gguf"));
        assert_eq!(path(&drafts, "mtp"), None);
    }

    #[test]
    fn a_model_of_which_a_part_is_missing_is_not_chosen() {
        let later = files(&[("m-00002-of-00003.gguf", 1), ("m-00003-of-00003.gguf", 1)]);
        for wanted in [None, Some("m")] {
            let error = choose("a/b", &later, wanted).unwrap_err().to_string();
            assert!(error.contains("is not listed"), "{error}");
        }
        let huge = files(&[("m-00001-of-99999999999.gguf", 1)]);
        assert!(choose("a/b", &huge, None).is_err());
        let mut both = later;
        both.extend(files(&[("n.gguf", 5)]));
        let chosen = choose("a/b", &both, None).unwrap();
        assert_eq!(chosen.path.unwrap(), "n.gguf");
        let odd = files(&[("m-00000-of-00002.gguf", 1), ("m-00003-of-00002.gguf", 1)]);
        assert!(choose("a/b", &odd, None).is_ok());
    }
}
