//! The models in a folder, by their names.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Depth of the folders that are searched.
const DEEPEST: usize = 3;

/// Finds GGUF files and Hugging Face directories in a folder and the folders in it. A name is a path without the file's extension.
///
/// # Errors
/// The folder cannot be read. Unreadable folders in it have no models.
pub fn scan(directory: &Path) -> io::Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    search(directory, "", DEEPEST, &mut found)?;
    Ok(found)
}

fn search(
    directory: &Path,
    before: &str,
    depth: usize,
    found: &mut BTreeMap<String, PathBuf>,
) -> io::Result<()> {
    let entries: io::Result<Vec<_>> = std::fs::read_dir(directory)?.collect();
    let mut paths: Vec<PathBuf> = entries?.iter().map(std::fs::DirEntry::path).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        let name = format!("{before}{name}");
        if path.join("config.json").is_file() {
            found.entry(name).or_insert(path);
        } else if !path.is_dir() {
            if let Some(stem) = stem(&path) {
                found.entry(format!("{before}{stem}")).or_insert(path);
            }
        } else if depth > 1 {
            let _ = search(&path, &format!("{name}/"), depth - 1, found);
        }
    }
    Ok(())
}

/// The name of a GGUF file of a model, without the number of the first of several parts.
fn stem(path: &Path) -> Option<String> {
    let is_gguf = path.extension().is_some_and(|end| end == "gguf");
    let stem = path.file_stem()?.to_string_lossy();
    // Projectors of images and importance matrices are not models.
    if !is_gguf || stem.starts_with("mmproj") || stem.contains("imatrix") {
        return None;
    }
    let part = stem.rsplit_once("-of-").and_then(|(before, count)| {
        let (name, number) = before.rsplit_once('-')?;
        Some((
            name,
            number.parse::<u32>().ok()?,
            count.parse::<u32>().ok()?,
        ))
    });
    match part {
        Some((name, number, _)) => (number == 1).then(|| name.into()),
        None => Some(stem.into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_found_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        for file in [
            "a.gguf",
            "a/config.json",
            "big-00001-of-00002.gguf",
            "big-00002-of-00002.gguf",
            "mmproj-a.gguf",
            "notes.txt",
            ".b.gguf",
            "hub/config.json",
            "hub/model.gguf",
            "org/one/config.json",
            "org/two.gguf",
            "1/2/3/deep.gguf",
        ] {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, "").expect("a file");
        }
        let found = scan(folder.path()).expect("models");
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["a", "big", "hub", "org/one", "org/two"]);
        assert!(found["big"].ends_with("big-00001-of-00002.gguf"));
        assert!(scan(&folder.path().join("nowhere")).is_err());
    }
}
