//! The models in the cache, their short names, and their removal.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::choice::{self, has_word};
use super::hub::{File, add_cached, cache, contents, is_hex, try_lock};
use super::without_scheme;
use crate::error::{Error, Result};
use crate::text::shown;

/// The part of a directory's name after the colon.
const DIRECTORY: &str = "safetensors";
/// The part after the colon for downloads that have not ended.
const UNFINISHED: &str = "unfinished";

/// A model in the cache: a GGUF file with all its parts, a Hugging Face directory, or downloads that have not ended.
pub struct Pulled {
    /// `org/name` of its repository.
    pub repository: String,
    /// The first GGUF file, or [`DIRECTORY`], or [`UNFINISHED`].
    pub file: String,
    /// The shortest name that no other model has.
    pub name: String,
    /// The path that opens it; `None` if a part of it is missing.
    pub path: Option<PathBuf>,
    /// The time of its newest contents.
    pub written: SystemTime,
    /// Its contents, each once, and their sizes.
    blobs: BTreeMap<PathBuf, u64>,
    /// Its files in snapshots.
    places: Vec<PathBuf>,
    /// The folder of its repository in the cache.
    folder: PathBuf,
    /// The folder with the locks of its contents.
    locks: PathBuf,
}

/// All models in the cache, by the names of their repositories and files.
///
/// # Errors
/// The environment names no cache.
pub fn all() -> Result<Vec<Pulled>> {
    Ok(inside(&cache()?))
}

fn inside(cache: &Path) -> Vec<Pulled> {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    let folders: BTreeSet<PathBuf> = entries.map(|entry| entry.path()).collect();
    let mut all: Vec<Pulled> = folders.iter().flat_map(|one| models(one)).collect();
    let names: Vec<String> = all.iter().map(|model| model.short_name(&all)).collect();
    for (model, name) in all.iter_mut().zip(names) {
        model.name = name;
    }
    all
}

/// Finds the model that a name means: `name`, `org/name`, or one of these with `:FILE`, where FILE is the file's name or a word of it.
///
/// # Errors
/// Several models have the name.
pub fn find(text: &str) -> Result<Option<Pulled>> {
    let text = without_scheme(text).unwrap_or(text);
    // Without a cache there is no model.
    let mut all = all().unwrap_or_default();
    let mut found = named(&all, text);
    if found.len() > 1 {
        let names: Vec<&str> = found.iter().map(|&index| &*all[index].name).collect();
        let reason = format!(
            "{text}: several models have this name: {}",
            names.join(", ")
        );
        return Err(Error::usage(shown(&reason)));
    }
    Ok(found.pop().map(|index| all.swap_remove(index)))
}

/// The indices of the models that a name means. The whole name of a file means this file only.
fn named(all: &[Pulled], text: &str) -> Vec<usize> {
    let (repository, file) = match text.split_once(':') {
        Some((repository, file)) => (repository, Some(file)),
        None => (text, None),
    };
    let is_repository = |model: &Pulled| {
        let names = [&*model.repository, model.repository_name()];
        names
            .iter()
            .any(|name| name.eq_ignore_ascii_case(repository))
    };
    let indices = |is_file: &dyn Fn(&Pulled) -> bool| -> Vec<usize> {
        let means = |&index: &usize| is_repository(&all[index]) && is_file(&all[index]);
        (0..all.len()).filter(means).collect()
    };
    let Some(file) = file else {
        return indices(&|_| true);
    };
    let exact = indices(&|model| model.file == file);
    if exact.is_empty() {
        indices(&|model| has_word(&model.file, file))
    } else {
        exact
    }
}

/// The models of a repository's folder in the cache; none if the folder is something else.
fn models(folder: &Path) -> Vec<Pulled> {
    let name = folder.file_name().and_then(|name| name.to_str());
    let name = name.and_then(|name| name.strip_prefix("models--")?.split_once("--"));
    let Some((org, name)) = name else {
        return Vec::new();
    };
    let repository = format!("{org}/{name}");
    let blobs = folder.join("blobs");
    let mut models: BTreeMap<String, Pulled> = BTreeMap::new();
    for snapshot in snapshots(folder) {
        let mut add =
            |file: &str, path: Option<PathBuf>, files: &mut dyn Iterator<Item = &File>| {
                let model = models.entry(file.into());
                let model = model.or_insert_with(|| Pulled::new(&repository, file, folder));
                model.path = model.path.take().or(path);
                let places = files.map(|file| snapshot.join(&file.name));
                for place in places {
                    model.add(contents(&place, &blobs));
                    model.places.push(place);
                }
            };
        let mut files = Vec::new();
        add_cached(&snapshot, &blobs, "", 0, &mut files);
        for model in choice::models(&files) {
            let is_whole = model.missing().is_none();
            let path = is_whole.then(|| snapshot.join(model.name()));
            add(model.name(), path, &mut model.files());
        }
        if !choice::directory(&files).is_empty() {
            let is_other = |file: &&File| !file.name.ends_with(".gguf");
            let mut files = files.iter().filter(is_other);
            add(DIRECTORY, Some(snapshot.clone()), &mut files);
        }
    }
    let mut unfinished = Pulled::new(&repository, UNFINISHED, folder);
    for entry in fs::read_dir(&blobs).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_part = path.extension().is_some_and(|kind| kind == "incomplete");
        unfinished.add(is_part.then_some(path));
    }
    let unfinished = (!unfinished.blobs.is_empty()).then_some(unfinished);
    models.into_values().chain(unfinished).collect()
}

/// The snapshots of a repository, the newest first.
fn snapshots(folder: &Path) -> Vec<PathBuf> {
    let main = fs::read_to_string(folder.join("refs/main")).unwrap_or_default();
    let entries = fs::read_dir(folder.join("snapshots"));
    let entries = entries.into_iter().flatten().flatten();
    let mut snapshots: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    snapshots.sort_by_key(|path| (!path.ends_with(&main), path.clone()));
    snapshots
}

impl Pulled {
    fn new(repository: &str, file: &str, folder: &Path) -> Self {
        let locks = folder.parent().unwrap_or(folder).join(".locks");
        Pulled {
            repository: repository.into(),
            file: file.into(),
            name: String::new(),
            path: None,
            written: SystemTime::UNIX_EPOCH,
            blobs: BTreeMap::new(),
            places: Vec::new(),
            locks: locks.join(folder.file_name().unwrap_or_default()),
            folder: folder.into(),
        }
    }

    fn add(&mut self, blob: Option<PathBuf>) {
        let Some(blob) = blob else {
            return;
        };
        if let Ok(data) = fs::metadata(&blob) {
            self.blobs.insert(blob, data.len());
            self.written = self.written.max(data.modified().unwrap_or(self.written));
        }
    }

    /// Size of its contents.
    pub fn bytes(&self) -> u64 {
        self.blobs.values().sum()
    }

    /// The name of its repository without the organization.
    fn repository_name(&self) -> &str {
        let name = self.repository.split_once('/');
        name.map_or(&self.repository, |(_, name)| name)
    }

    /// The shortest name that only this model has.
    fn short_name(&self, all: &[Pulled]) -> String {
        let stem = choice::stem(&self.file);
        let words = stem.rsplit(['-', '/', ' ']).filter(|word| !word.is_empty());
        let words = words.chain([stem, &self.file]);
        let [short, long] = [self.repository_name(), &self.repository];
        let alone = [short, long].into_iter().map(String::from);
        let endings = |name: &str| {
            let name = name.to_string();
            words.clone().map(move |word| format!("{name}:{word}"))
        };
        let mut names = alone.chain(endings(short)).chain(endings(long));
        let is_own = |name: &String| match *named(all, name) {
            [index] => std::ptr::eq(&all[index], self),
            _ => false,
        };
        let whole = || format!("{}:{}", self.repository, self.file);
        names.find(is_own).unwrap_or_else(whole)
    }

    /// Removes its files, and the contents that no other model has. Returns the number of bytes that are free then.
    ///
    /// # Errors
    /// Another process downloads the model, in which case nothing is removed; or a file cannot be removed.
    pub fn remove(&self) -> Result<u64> {
        let _locks = self.lock()?;
        for place in &self.places {
            remove_file(place)?;
        }
        let used = linked(&self.folder);
        let mut freed = 0;
        for (blob, size) in self.blobs.iter().filter(|(blob, _)| !used.contains(*blob)) {
            remove_file(blob)?;
            freed += size;
        }
        // Folders that hold other files stay.
        for place in &self.places {
            let folders = place.ancestors().skip(1);
            for folder in folders.take_while(|folder| *folder != self.folder) {
                let _ = fs::remove_dir(folder);
            }
        }
        if !self.folder.join("snapshots").exists() {
            let _ = fs::remove_file(self.folder.join("refs/main"));
        }
        for name in ["blobs", "refs", ""] {
            let _ = fs::remove_dir(self.folder.join(name));
        }
        Ok(freed)
    }

    /// Locks its contents against downloads.
    fn lock(&self) -> Result<Vec<fs::File>> {
        fs::create_dir_all(&self.locks).map_err(|error| Error::io(&self.locks, error))?;
        let mut locks = Vec::new();
        for blob in self.blobs.keys() {
            let name = blob.file_name().unwrap_or_default().to_string_lossy();
            let hash = name.split('.').next().unwrap_or_default();
            if !is_hex(hash) {
                continue;
            }
            let (lock, is_free) = try_lock(&self.locks.join(format!("{hash}.lock")))?;
            if !is_free {
                let reason = format!("{}: another process downloads it", self.name);
                return Err(Error::usage(shown(&reason)));
            }
            locks.push(lock);
        }
        Ok(locks)
    }
}

/// The contents of all files in the snapshots of a repository.
fn linked(folder: &Path) -> BTreeSet<PathBuf> {
    let blobs = folder.join("blobs");
    let mut used = BTreeSet::new();
    for snapshot in snapshots(folder) {
        let mut files = Vec::new();
        add_cached(&snapshot, &blobs, "", 0, &mut files);
        let places = files.iter().map(|file| snapshot.join(&file.name));
        used.extend(places.filter_map(|place| contents(&place, &blobs)));
    }
    used
}

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path, error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The short names of these files of `org/name` in a cache.
    fn names(files: &[&str]) -> Vec<String> {
        let cache = tempfile::tempdir().unwrap();
        for file in files {
            let path = cache
                .path()
                .join("models--org--name/snapshots/ab")
                .join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let all = inside(cache.path());
        for model in &all {
            let found = named(&all, &model.name);
            assert!(
                found.len() == 1 && all[found[0]].file == model.file,
                "{}",
                model.name
            );
        }
        all.into_iter().map(|model| model.name).collect()
    }

    #[test]
    fn a_short_name_is_the_shortest_that_means_one_model() {
        assert_eq!(names(&["m-Q4_0.gguf"]), ["name"]);
        assert_eq!(
            names(&["m-Q4_0.gguf", "m-Q8_0.gguf"]),
            ["name:Q4_0", "name:Q8_0"]
        );
        assert_eq!(
            names(&["m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "m-Q4_K.gguf"]),
            ["name:Q4_K", "name:m-Q4_K_M", "name:UD"]
        );
        assert_eq!(
            names(&["Q4_0.gguf", "Q4_0/Q4_0.gguf", "x/mmproj-F16.gguf"]),
            ["name:Q4_0.gguf", "name:Q4_0/Q4_0"]
        );
        let parts = ["Q4_0/m-00001-of-00002.gguf", "Q4_0/m-00002-of-00002.gguf"];
        assert_eq!(names(&parts), ["name"]);
        assert_eq!(names(&[parts[0], "m.gguf"]), ["name:Q4_0", "name:m.gguf"]);
        let both = ["config.json", "model.safetensors", "m.gguf"];
        assert_eq!(names(&both), ["name:m", "name:safetensors"]);
    }
}
