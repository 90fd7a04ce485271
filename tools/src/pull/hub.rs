//! A hub: the contents of a repository, and its files in the cache that Hugging Face's programs share:
//! `models--org--name/{blobs/HASH, snapshots/REVISION/FILE -> blob, refs/main}`.

use std::fs;
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::error::{Error, Result};
use crate::sha256;

/// The default hub, which HF_ENDPOINT overrides.
const ENDPOINT: &str = "https://huggingface.co";
/// Number of consecutive connections without a byte after which a download fails.
const ATTEMPTS: usize = 5;

/// A file of a repository.
#[derive(Debug, Clone, PartialEq)]
pub struct File {
    pub name: String,
    pub size: u64,
    /// Known for large files only.
    pub sha256: Option<String>,
    /// The name of the content: the hash above, or git's hash.
    pub blob: String,
}

/// A revision of a repository.
pub struct Revision {
    pub files: Vec<File>,
    sha: String,
}

/// A repository of a hub.
pub struct Hub {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    name: String,
    folder: PathBuf,
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
    size: u64,
}

impl Hub {
    /// Sets up the repository `name`, with the hub and the cache that the environment names.
    pub fn new(name: &str) -> Result<Self> {
        let set = |key: &str| std::env::var(key).ok().filter(|value| !value.is_empty());
        let home = || Some(PathBuf::from(set("HOME").or_else(|| set("USERPROFILE"))?));
        let cache = set("HF_HUB_CACHE").map(PathBuf::from).or_else(|| {
            let own = set("HF_HOME").map(PathBuf::from);
            let own = own.or_else(|| Some(home()?.join(".cache/huggingface")));
            Some(own?.join("hub"))
        });
        let cache =
            cache.ok_or_else(|| Error::usage("HF_HOME: expected the folder of the cache"))?;
        let config = Agent::config_builder()
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .http_status_as_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("waterline/", env!("CARGO_PKG_VERSION")))
            .build();
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into());
        Ok(Hub {
            agent: config.into(),
            endpoint: endpoint.trim_end_matches('/').into(),
            token: set("HF_TOKEN"),
            folder: cache.join(format!("models--{}", name.replace('/', "--"))),
            name: name.into(),
        })
    }

    /// Lists the present files of the repository. If the hub does not answer, lists the files that a download left in the cache.
    pub fn revision(&self) -> Result<Revision> {
        self.listed().or_else(|error| {
            let cached = self.cached().ok_or(error)?;
            eprintln!(
                "note: the hub does not answer; {} is as it was when it was downloaded",
                self.name
            );
            Ok(cached)
        })
    }

    /// Lists the files of the newest snapshot in the cache.
    fn cached(&self) -> Option<Revision> {
        let sha = fs::read_to_string(self.folder.join("refs/main")).ok()?;
        let snapshot = self.folder.join("snapshots").join(&sha);
        let file = |entry: fs::DirEntry| {
            let blob = fs::canonicalize(entry.path()).ok()?;
            Some(File {
                name: entry.file_name().into_string().ok()?,
                size: fs::metadata(&blob)
                    .ok()
                    .filter(|found| found.is_file())?
                    .len(),
                sha256: None,
                blob: blob.file_name()?.to_str()?.into(),
            })
        };
        let files = fs::read_dir(snapshot).ok()?;
        let files: Vec<File> = files.filter_map(|entry| file(entry.ok()?)).collect();
        (!files.is_empty()).then_some(Revision { files, sha })
    }

    fn listed(&self) -> Result<Revision> {
        let url = format!(
            "{}/api/models/{}/revision/main?blobs=true",
            self.endpoint, self.name
        );
        let mut response = self.get(&url, 0)?;
        let text = response.body_mut().read_to_string();
        let text = text.map_err(|error| self.failed(&url, &error.to_string()))?;
        let listing = serde_json::from_str(&text);
        let listing: Listing = listing.map_err(|error| self.failed(&url, &error.to_string()))?;
        let file = |sibling: Sibling| {
            let (size, sha256) = match sibling.lfs {
                Some(lfs) => (lfs.size, Some(lfs.sha256)),
                None => (sibling.size.unwrap_or(0), None),
            };
            let blob = sha256.clone().or(sibling.blob)?;
            Some(File {
                name: sibling.rfilename,
                size,
                sha256,
                blob,
            })
        };
        let files: Vec<File> = listing.siblings.into_iter().filter_map(file).collect();
        let is_hash = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
        let is_safe = |file: &File| {
            let mut parts = Path::new(&file.name).components();
            is_hash(&file.blob) && parts.all(|part| matches!(part, Component::Normal(_)))
        };
        if is_hash(&listing.sha) && files.iter().all(is_safe) {
            Ok(Revision {
                files,
                sha: listing.sha,
            })
        } else {
            Err(self.failed(&url, "it names files that are outside of the repository"))
        }
    }

    /// The folder with the files of a revision.
    pub fn snapshot(&self, revision: &Revision) -> PathBuf {
        self.folder.join("snapshots").join(&revision.sha)
    }

    /// Downloads a file unless it is in the cache.
    pub fn fetch(&self, revision: &Revision, file: &File) -> Result<()> {
        let blobs = self.folder.join("blobs");
        let blob = blobs.join(&file.blob);
        let place = self.snapshot(revision).join(&file.name);
        let folder = place.parent().unwrap_or(&self.folder);
        for folder in [&*blobs, folder, &*self.folder.join("refs")] {
            fs::create_dir_all(folder).map_err(|e| Error::io(folder, e))?;
        }
        if !fs::metadata(&blob).is_ok_and(|found| found.len() == file.size) {
            let part = blobs.join(format!("{}.incomplete", file.blob));
            self.complete(revision, file, &part)?;
            if let Err(error) = check(file, &part) {
                let _ = fs::remove_file(&part);
                return Err(error);
            }
            fs::rename(&part, &blob).map_err(|e| Error::io(&blob, e))?;
        }
        if !place.exists() {
            let _ = fs::remove_file(&place);
            link(&blob, &place, Path::new(&file.name).components().count())
                .map_err(|e| Error::io(&place, e))?;
        }
        let main = self.folder.join("refs").join("main");
        fs::write(&main, &revision.sha).map_err(|e| Error::io(&main, e))
    }

    /// Downloads the missing part of a file. Reconnects after a connection that ends early.
    fn complete(&self, revision: &Revision, file: &File, part: &Path) -> Result<()> {
        let url = format!(
            "{}/{}/resolve/{}/{}",
            self.endpoint, self.name, revision.sha, file.name
        );
        let io = |error| Error::io(part, error);
        let mut out = fs::OpenOptions::new();
        let out = out.create(true).append(true).read(true).open(part);
        let mut out = out.map_err(io)?;
        let bar = bar(file);
        let mut left = ATTEMPTS;
        loop {
            let have = out.seek(SeekFrom::End(0)).map_err(io)?;
            if have == file.size {
                break;
            }
            // A part longer than the file cannot be its beginning.
            let mut have = if have > file.size { 0 } else { have };
            let outcome = self.get(&url, have).and_then(|response| {
                if response.status() != 206 {
                    have = 0;
                }
                if have == 0 {
                    out.set_len(0).map_err(io)?;
                }
                bar.set_position(have);
                let body = response.into_body().into_reader();
                copy(&mut body.take(file.size - have + 1), &mut out, &bar).map_err(io)
            });
            let now = out.seek(SeekFrom::End(0)).map_err(io)?;
            if now > file.size {
                let reason = format!("found more than the {} bytes of its listing", file.size);
                let _ = fs::remove_file(part);
                return Err(self.failed(&url, &reason));
            }
            left = if now > have { ATTEMPTS } else { left - 1 };
            if left == 0 && now < file.size {
                outcome?;
                let reason = format!("found {now} of {} bytes", file.size);
                return Err(self.failed(&url, &reason));
            }
            if now <= have && now < file.size {
                std::thread::sleep(Duration::from_millis(200));
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Requests `url`, from byte `start` on.
    fn get(&self, url: &str, start: u64) -> Result<Response<Body>> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if start > 0 {
            request = request.header("Range", format!("bytes={start}-"));
        }
        let response = request.call();
        let response = response.map_err(|error| self.failed(url, &error.to_string()))?;
        match response.status().as_u16() {
            200 | 206 => Ok(response),
            401 | 403 => Err(self.failed(url, "it needs a token that may read it (HF_TOKEN)")),
            404 => Err(self.failed(url, "there is no such repository or file")),
            status => Err(self.failed(url, &format!("the hub answers {status}"))),
        }
    }

    fn failed(&self, url: &str, reason: &str) -> Error {
        Error::usage(format!("{}: {url}: {reason}", self.name))
    }
}

/// Copies data until the connection ends, early or not.
fn copy(body: &mut impl Read, out: &mut fs::File, bar: &ProgressBar) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = body.read(&mut buffer) {
        out.write_all(&buffer[..count])?;
        bar.inc(count as u64);
    }
    Ok(())
}

/// Checks the hash of a complete file, if it is known.
fn check(file: &File, path: &Path) -> Result<()> {
    let Some(expected) = &file.sha256 else {
        return Ok(());
    };
    let found = sha256::of_files(&[path])?;
    if found == *expected {
        Ok(())
    } else {
        Err(Error::usage(format!(
            "{}: SHA-256: found {found}, expected {expected}; it was not kept",
            file.name
        )))
    }
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

fn bar(file: &File) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(style);
    let bar = ProgressBar::new(file.size);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(file.name.clone());
    bar
}
