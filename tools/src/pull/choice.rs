//! Chooses the files of a repository that make up the named model.

use super::hub::File;
use crate::error::{Error, Result};
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

/// Endings of the files in a Hugging Face directory from which a model is opened.
const DIRECTORY: [&str; 3] = [".json", ".safetensors", ".jinja"];
/// Names of formats that are not quantized.
const PLAIN: [&str; 3] = ["F32", "BF16", "F16"];

/// Chooses the file that matches `wanted`, or else a file that fits into memory.
pub fn choose(name: &str, files: &[File], wanted: Option<&str>) -> Result<Choice> {
    let is_model = |file: &&File| file.name.ends_with(".gguf") && !file.name.contains("mmproj");
    let models: Vec<&File> = files.iter().filter(is_model).collect();
    if let Some(wanted) = wanted {
        let is_exact = |file: &&&File| file.name == wanted;
        let has_part = |file: &&&File| file.name.to_lowercase().contains(&wanted.to_lowercase());
        let found = models.iter().find(is_exact);
        let found = found.or_else(|| models.iter().find(has_part));
        let Some(found) = found else {
            let names: Vec<&str> = models.iter().map(|file| file.name.as_str()).collect();
            return Err(Error::usage(format!(
                "{name}: no GGUF file is called {wanted:?}; there are: {}",
                names.join(", ")
            )));
        };
        return Ok(of_gguf(found, files, None));
    }
    if !models.is_empty() {
        return Ok(fitting(&models, files, free_memory()));
    }
    let is_needed = |file: &&File| {
        DIRECTORY.iter().any(|end| file.name.ends_with(end)) && !file.name.contains('/')
    };
    let needed: Vec<File> = files.iter().filter(is_needed).cloned().collect();
    let has_weights = needed
        .iter()
        .any(|file| file.name.ends_with(".safetensors"));
    if has_weights {
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

/// Chooses the largest quantization that takes at most half of the free memory, or else the smallest file.
fn fitting(models: &[&File], files: &[File], free: Option<u64>) -> Choice {
    let size = |file: &File| parts(file, files).iter().map(|part| part.size).sum::<u64>();
    let is_first = |file: &&&File| split(&file.name).is_none_or(|(_, number, _)| number == 1);
    let mut models: Vec<&File> = models.iter().filter(is_first).copied().collect();
    models.sort_by_key(|file| size(file));
    let is_plain = |file: &&File| {
        let name = file.name.to_uppercase();
        PLAIN.iter().any(|plain| name.contains(plain))
    };
    let fits = |file: &&File| free.is_none_or(|free| size(file) <= free / 2);
    let quantized = models.iter().rev().filter(|file| !is_plain(file));
    let chosen = quantized.copied().find(fits).unwrap_or(models[0]);
    let free = match free {
        Some(free) => format!(
            "fits into half of the free memory ({})",
            bytes(free as usize)
        ),
        None => "the free memory is unknown".into(),
    };
    let note = format!("{}: {}; {free}", chosen.name, bytes(size(chosen) as usize));
    of_gguf(chosen, files, (models.len() > 1).then_some(note))
}

fn of_gguf(file: &File, files: &[File], note: Option<String>) -> Choice {
    Choice {
        files: parts(file, files),
        path: Some(file.name.clone()),
        note,
    }
}

/// The file and all other parts of its split.
fn parts(file: &File, files: &[File]) -> Vec<File> {
    let Some((stem, _, count)) = split(&file.name) else {
        return vec![file.clone()];
    };
    let is_part =
        |other: &&File| split(&other.name).is_some_and(|(name, _, of)| (name, of) == (stem, count));
    files.iter().filter(is_part).cloned().collect()
}

/// Splits `stem-00001-of-00003.gguf` into stem, number and count.
fn split(name: &str) -> Option<(&str, u32, u32)> {
    let (stem, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = stem.rsplit_once('-')?;
    Some((stem, number.parse().ok()?, count.parse().ok()?))
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
            size,
            sha256: None,
            blob: "b".into(),
        };
        list.iter().map(file).collect()
    }

    #[test]
    fn the_largest_quantization_that_fits_is_chosen_with_all_its_parts() {
        let all = files(&[
            ("m-BF16.gguf", 160),
            ("m-Q4_K_M.gguf", 40),
            ("m-Q8_0-00001-of-00002.gguf", 50),
            ("m-Q8_0-00002-of-00002.gguf", 30),
            ("mmproj-F16.gguf", 1),
        ]);
        let models: Vec<&File> = all[..4].iter().collect();
        let chosen = |free| fitting(&models, &all, Some(free)).path.unwrap();
        assert_eq!(chosen(1000), "m-Q8_0-00001-of-00002.gguf");
        assert_eq!(fitting(&models, &all, Some(1000)).files.len(), 2);
        assert_eq!(chosen(100), "m-Q4_K_M.gguf");
        assert_eq!(chosen(10), "m-Q4_K_M.gguf");
        let named = choose("a/b", &all, Some("bf16")).unwrap();
        assert_eq!(
            (named.path.unwrap(), named.files.len()),
            ("m-BF16.gguf".into(), 1)
        );
        let error = choose("a/b", &all, Some("Q2_K")).unwrap_err();
        assert!(error.to_string().contains("m-Q4_K_M.gguf"), "{error}");
        let folder = files(&[
            ("config.json", 1),
            ("model.safetensors", 9),
            ("README.md", 1),
        ]);
        let chosen = choose("a/b", &folder, None).unwrap();
        assert_eq!((chosen.path, chosen.files.len()), (None, 2));
        assert!(choose("a/b", &files(&[("README.md", 1)]), None).is_err());
    }
}
