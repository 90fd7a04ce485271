//! A hub: the contents of a repository, and its files in the cache that Hugging Face's programs share:
//! `models--org--name/{blobs/HASH, snapshots/REVISION/FILE -> blob, refs/main}`, with a lock for each blob in `.locks`.

use std::fs;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use waterline_quant::NewFile;

use super::client::Client;
use super::transfer;
use crate::error::{Error, Result};
use crate::text::{shown, shown_line};

/// The default hub, which HF_ENDPOINT overrides.
const ENDPOINT: &str = "https://huggingface.co";
/// Folders below a snapshot that are searched when the hub cannot be reached.
const DEEPEST: usize = 8;

/// A file of a repository.
#[derive(Debug, Clone, PartialEq)]
pub struct File {
    pub name: String,
    /// `None` if the hub lists no size or no hash, without which the file cannot be checked.
    pub size: Option<u64>,
    /// The name of the contents: SHA-256 of a large file, git's hash of a small one.
    pub blob: String,
}

/// A revision of a repository.
pub struct Revision {
    pub files: Vec<File>,
    sha: String,
}

/// A repository of a hub.
pub struct Hub {
    client: Client,
    endpoint: String,
    name: String,
    folder: PathBuf,
    locks: PathBuf,
}

#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: Option<u64>,
}

impl Sibling {
    fn file(self) -> File {
        let (size, blob) = match self.lfs {
            Some(lfs) => (lfs.size, Some(lfs.sha256)),
            None => (self.size, self.blob),
        };
        let is_hash = |blob: &String| [40, 64].contains(&blob.len()) && is_hex(blob);
        let blob = blob.map(|blob| blob.to_lowercase()).filter(is_hash);
        File {
            name: self.rfilename,
            size: size.filter(|_| blob.is_some()),
            blob: blob.unwrap_or_default(),
        }
    }
}

pub fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The folder of Hugging Face's programs.
fn home() -> Option<PathBuf> {
    let own = || set("HF_HOME").map(PathBuf::from);
    let caches = || set("XDG_CACHE_HOME").map(PathBuf::from);
    let user = || {
        set("HOME")
            .or_else(|| set("USERPROFILE"))
            .map(PathBuf::from)
    };
    own().or_else(|| {
        let caches = caches().or_else(|| Some(user()?.join(".cache")))?;
        Some(caches.join("huggingface"))
    })
}

/// The cache that the environment names.
pub fn cache() -> Result<PathBuf> {
    let cache = set("HF_HUB_CACHE").map(PathBuf::from);
    let cache = cache.or_else(|| Some(home()?.join("hub")));
    cache.ok_or_else(|| Error::usage("HF_HOME: expected the folder of the cache"))
}

/// The value of an environment variable, if it is not empty.
fn set(key: &str) -> Option<String> {
    std::env::var(key).ok().filter(|value| !value.is_empty())
}

/// The access token: HF_TOKEN, or what the hub's own program saved when its user logged in.
fn token() -> Option<String> {
    let saved = || {
        let path = set("HF_TOKEN_PATH").map(PathBuf::from);
        let path = path.or_else(|| Some(home()?.join("token")))?;
        fs::read_to_string(path).ok()
    };
    let token = set("HF_TOKEN").or_else(saved)?;
    Some(token.trim().to_string()).filter(|token| !token.is_empty())
}

impl Hub {
    /// Sets up the repository `name`, with the hub and the cache that the environment names.
    pub fn new(name: &str) -> Result<Self> {
        let cache = cache()?;
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into());
        let endpoint = endpoint.trim_end_matches('/');
        let folder = format!("models--{}", name.replace('/', "--"));
        Ok(Hub {
            client: Client::new(endpoint, token(), name)?,
            endpoint: endpoint.into(),
            name: name.into(),
            locks: cache.join(".locks").join(&folder),
            folder: cache.join(folder),
        })
    }

    /// Lists the present files of the repository. If the hub does not answer, lists the files that a download left in the cache.
    pub fn revision(&self) -> Result<Revision> {
        self.listed().or_else(|error| {
            let Some(cached) = self.cached() else {
                return Err(error);
            };
            eprintln!(
                "note: {error}; {} is as it was when it was downloaded",
                self.name
            );
            Ok(cached)
        })
    }

    /// Lists the files of the newest snapshot in the cache.
    fn cached(&self) -> Option<Revision> {
        let sha = fs::read_to_string(self.folder.join("refs/main")).ok()?;
        let snapshot = self.folder.join("snapshots").join(&sha);
        let mut files = Vec::new();
        add_cached(&snapshot, &self.folder.join("blobs"), "", 0, &mut files);
        (is_hex(&sha) && !files.is_empty()).then_some(Revision { files, sha })
    }

    fn listed(&self) -> Result<Revision> {
        let url = format!(
            "{}/api/models/{}/revision/main?blobs=true",
            self.endpoint, self.name
        );
        let text = self.client.text(&url)?;
        let listing = serde_json::from_str(&text);
        let listing: Listing =
            listing.map_err(|error| self.client.failed(&url, &error.to_string()))?;
        let files: Vec<File> = listing.siblings.into_iter().map(Sibling::file).collect();
        let is_inside = |file: &File| {
            let mut parts = Path::new(&file.name).components();
            parts.all(|part| matches!(part, Component::Normal(_)))
        };
        let is_plain = |file: &File| {
            let is_line = !file.name.contains(['\n', '\t']);
            is_line && !file.name.is_empty() && shown(&file.name) == file.name
        };
        let reason = if !is_hex(&listing.sha) {
            "it names no revision"
        } else if !files.iter().all(is_inside) {
            "it names files that are outside of the repository"
        } else if !files.iter().all(is_plain) {
            "it names files by characters that control a terminal"
        } else {
            return Ok(Revision {
                files,
                sha: listing.sha,
            });
        };
        Err(self.client.failed(&url, reason))
    }

    /// The folder with the files of a revision.
    pub fn snapshot(&self, revision: &Revision) -> PathBuf {
        self.folder.join("snapshots").join(&revision.sha)
    }

    /// Downloads a file unless it is in the cache. One process at a time downloads or replaces its contents.
    pub fn fetch(&self, revision: &Revision, file: &File) -> Result<()> {
        let size = file.size.ok_or_else(|| {
            Error::usage(format!(
                "{}: the hub lists no size or no hash of {}, so it cannot be checked",
                self.name,
                shown_line(&file.name, usize::MAX)
            ))
        })?;
        let blobs = self.folder.join("blobs");
        let blob = blobs.join(&file.blob);
        let place = self.snapshot(revision).join(&file.name);
        let folder = place.parent().unwrap_or(&self.folder);
        for folder in [&*blobs, folder, &*self.folder.join("refs"), &*self.locks] {
            fs::create_dir_all(folder).map_err(|e| Error::io(folder, e))?;
        }
        let _lock = lock(&self.locks.join(format!("{}.lock", file.blob)), file)?;
        if !fs::metadata(&blob).is_ok_and(|found| found.len() == size) {
            let part = blobs.join(format!("{}.incomplete", file.blob));
            let url = format!(
                "{}/{}/resolve/{}/{}",
                self.endpoint,
                self.name,
                revision.sha,
                escaped(&file.name)
            );
            transfer::complete(&self.client, &url, file, size, &part)?;
            if let Err(error) = transfer::check(file, &part) {
                let _ = fs::remove_file(&part);
                return Err(error);
            }
            fs::rename(&part, &blob).map_err(|e| Error::io(&blob, e))?;
        }
        if contents(&place, &blobs) != fs::canonicalize(&blob).ok() {
            let _ = fs::remove_file(&place);
            link(&blob, &place, Path::new(&file.name).components().count())
                .map_err(|e| Error::io(&place, e))?;
        }
        let main = self.folder.join("refs").join("main");
        let write = || {
            let mut out = NewFile::create(&main)?;
            out.write_all(revision.sha.as_bytes())?;
            out.finish()
        };
        write().map_err(|e| Error::io(&main, e))
    }
}

/// Adds the files of a folder of a snapshot, whose names begin with `prefix`.
pub fn add_cached(folder: &Path, blobs: &Path, prefix: &str, depth: usize, files: &mut Vec<File>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = || -> Option<File> {
            let blob = contents(&entry.path(), blobs)?;
            Some(File {
                name: format!("{prefix}{}", entry.file_name().to_str()?),
                size: fs::metadata(&blob).ok().map(|found| found.len()),
                blob: blob.file_name()?.to_str()?.into(),
            })
        };
        match fs::metadata(entry.path()) {
            Ok(found) if found.is_file() => files.extend(file()),
            Ok(found) if found.is_dir() && depth < DEEPEST => {
                let prefix = format!("{prefix}{}/", entry.file_name().to_string_lossy());
                add_cached(&entry.path(), blobs, &prefix, depth + 1, files);
            }
            _ => {}
        }
    }
}

/// Locks the contents of a file against other downloads, also those of the hub's own program.
fn lock(path: &Path, file: &File) -> Result<fs::File> {
    let (lock, is_free) = try_lock(path)?;
    if !is_free {
        if std::io::stderr().is_terminal() {
            let name = shown_line(&file.name, 60);
            eprintln!("note: waiting for another download of {name}");
        }
        lock.lock().map_err(|error| Error::io(path, error))?;
    }
    Ok(lock)
}

/// Opens a lock. Returns whether it was free, in which case it is held until the file is closed.
pub fn try_lock(path: &Path) -> Result<(fs::File, bool)> {
    let io = |error| Error::io(path, error);
    let mut options = fs::File::options();
    let lock = options.create(true).truncate(false).write(true).open(path);
    let lock = lock.map_err(io)?;
    match lock.try_lock() {
        Err(fs::TryLockError::WouldBlock) => Ok((lock, false)),
        // A file system without locks.
        Err(fs::TryLockError::Error(error)) if error.kind() != ErrorKind::Unsupported => {
            Err(io(error))
        }
        _ => Ok((lock, true)),
    }
}

/// A path in an address: everything but letters, digits and a few marks as bytes in hexadecimal digits.
fn escaped(path: &str) -> String {
    let mut address = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            address.push(byte.into())
        } else {
            address.push_str(&format!("%{byte:02X}"))
        }
    }
    address
}

/// The blob that a file of a snapshot is a link to; the file itself if another program stored its bytes there.
pub fn contents(place: &Path, blobs: &Path) -> Option<PathBuf> {
    let file = fs::canonicalize(place).ok()?;
    if fs::canonicalize(blobs).is_ok_and(|blobs| file.starts_with(blobs)) {
        return Some(file);
    }
    let found = fs::metadata(&file).ok()?;
    let entries = fs::read_dir(blobs).into_iter().flatten().flatten();
    let is_same = |blob: &PathBuf| fs::metadata(blob).is_ok_and(|blob| is_one(&found, &blob));
    let mut blobs = entries.map(|entry| entry.path());
    Some(blobs.find(is_same).unwrap_or(file))
}

/// Whether two hard links lead to one file.
#[cfg(unix)]
fn is_one(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Whether two hard links lead to one file. The system's number of a file is not in the standard library, its times are.
#[cfg(not(unix))]
fn is_one(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    let facts = |file: &fs::Metadata| (file.len(), file.modified().ok(), file.created().ok());
    facts(one) == facts(other)
}

/// Creates a link from a snapshot to a blob, relative like Hugging Face's. `depth` counts the folders below the
/// snapshot and the file.
#[cfg(unix)]
fn link(blob: &Path, place: &Path, depth: usize) -> std::io::Result<()> {
    let up = "../".repeat(depth + 1);
    let name = blob.file_name().unwrap_or_default();
    std::os::unix::fs::symlink(Path::new(&up).join("blobs").join(name), place)
}

/// Symbolic links need rights that few users have there, so this is a hard link.
#[cfg(not(unix))]
fn link(blob: &Path, place: &Path, _: usize) -> std::io::Result<()> {
    fs::hard_link(blob, place)
}
