//! The cache of compiled kernels, safe to delete at any time.
//!
//! A file's name is the SHA-256 of the source, in which a model's dimensions are constants, and of the compiler's options, which include
//! the architecture. The compiler's version is not part of the name, so that kernels built elsewhere are found on a machine with another
//! NVRTC or with none; the file records it. Machine code from the cache runs on the GPU unchecked, so a folder that others may write to is
//! not used.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use waterline_quant::{NewFile, check_private_folder, create_private_folder};

use crate::state::hex;

const MAGIC: &[u8; 8] = b"WLCUBIN3";
const DIGEST: usize = 32;

/// Returns the file name for a source and the compiler's options.
pub(crate) fn key(source: &str, options: &[String]) -> String {
    let mut hash = Sha256::new();
    for part in options.iter().map(String::as_str).chain([source]) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let architecture = options.first().and_then(|option| option.split('=').nth(1));
    format!(
        "{}-{}.cubin",
        architecture.unwrap_or_default(),
        hex(&hash.finalize())
    )
}

/// A folder of compiled kernels.
pub(crate) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The folder that `WATERLINE_KERNELS` names, or a folder in the user's cache or home folder.
    ///
    /// # Errors
    /// The reason why there is no usable folder, as a part of a sentence.
    pub(crate) fn from_environment() -> Result<Self, String> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let folder = folder(set).ok_or("there is no home folder for a cache of kernels")?;
        check_private_folder(&folder).map_err(|error| error.to_string())?;
        Ok(Self::at(folder))
    }

    /// A folder, which need not exist yet.
    pub fn at(folder: PathBuf) -> Self {
        Cache { folder }
    }

    /// Returns the path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the image of this name, or `None` if the file is missing or damaged.
    pub fn read(&self, key: &str) -> Option<Vec<u8>> {
        let bytes = std::fs::read(self.folder.join(key)).ok()?;
        let (magic, rest) = bytes.split_at_checked(MAGIC.len())?;
        let (digest, rest) = rest.split_at_checked(DIGEST)?;
        let (length, contents) = rest.split_at_checked(1)?;
        let (_compiler, image) = contents.split_at_checked(length[0].into())?;
        let is_whole = magic == MAGIC && digest == digest_of(key, rest);
        is_whole.then(|| image.to_vec())
    }

    /// Stores an image that `compiler` made.
    pub fn write(&self, key: &str, compiler: &str, image: &[u8]) -> std::io::Result<()> {
        create_private_folder(&self.folder)?;
        let length = compiler.len().min(u8::MAX.into());
        let contents = [&[length as u8], &compiler.as_bytes()[..length], image].concat();
        let whole = [MAGIC.as_slice(), &digest_of(key, &contents), &contents].concat();
        let mut file = NewFile::create(self.folder.join(key))?;
        file.write_all(&whole)?;
        file.finish()
    }
}

/// Returns the folder that an environment names: without a choice by the user, it is in `LOCALAPPDATA` on Windows and in `HOME` elsewhere.
fn folder(set: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let below = |name: &str, path: &str| Some(PathBuf::from(set(name)?).join(path));
    set("WATERLINE_KERNELS")
        .map(PathBuf::from)
        .or_else(|| below("XDG_CACHE_HOME", "waterline/kernels"))
        .or_else(|| below("LOCALAPPDATA", "waterline/kernels"))
        .or_else(|| below("HOME", ".cache/waterline/kernels"))
}

/// Returns the digest of a file's contents and its name: an image for another architecture is as useless as a damaged one.
fn digest_of(key: &str, contents: &[u8]) -> [u8; DIGEST] {
    let mut hash = Sha256::new();
    hash.update(key);
    hash.update(contents);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(architecture: &str) -> Vec<String> {
        vec![format!("--gpu-architecture={architecture}"), "-x".into()]
    }

    #[test]
    fn a_cached_kernel_is_used_as_a_whole_and_under_its_own_name_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::at(folder.path().join("kernels"));
        let key_90 = key("source", &options("sm_90"));
        assert_eq!(cache.read(&key_90), None);
        let image = b"machine code".as_slice();
        cache.write(&key_90, "NVRTC 13.0", image).expect("written");
        assert_eq!(cache.read(&key_90).as_deref(), Some(image));

        let key_87 = key("source", &options("sm_87"));
        let path = |key: &str| cache.folder().join(key);
        std::fs::copy(path(&key_90), path(&key_87)).expect("copied");
        assert_eq!(cache.read(&key_87), None);

        let whole = std::fs::read(path(&key_90)).expect("read");
        for length in 0..whole.len() {
            std::fs::write(path(&key_90), &whole[..length]).expect("written");
            assert_eq!(cache.read(&key_90), None, "{length} bytes");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(path(&key_90), damaged).expect("written");
            assert_eq!(cache.read(&key_90), None, "byte {at}");
        }
    }

    #[test]
    fn the_name_depends_on_source_and_options_and_never_changes() {
        let name = key("source", &options("sm_90"));
        assert_eq!(
            name,
            "sm_90-b4d92b7f28b4a0cd2a5670595526f43ede1a35500711d716494d7e8864d68ca4.cubin"
        );
        assert_ne!(name, key("sourc", &options("sm_90")));
        assert_ne!(name, key("source", &options("sm_90")[..1]));
    }

    #[test]
    fn the_environment_names_the_folder() {
        let found = |set: &[(&str, &str)]| {
            folder(|name| Some(set.iter().find(|(key, _)| *key == name)?.1.into()))
        };
        let mut set = vec![
            ("WATERLINE_KERNELS", "/own"),
            ("XDG_CACHE_HOME", "/cache"),
            ("LOCALAPPDATA", "/local"),
            ("HOME", "/home"),
        ];
        for expected in [
            "/own",
            "/cache/waterline/kernels",
            "/local/waterline/kernels",
            "/home/.cache/waterline/kernels",
        ] {
            assert_eq!(found(&set).as_deref(), Some(Path::new(expected)));
            set.remove(0);
        }
        assert_eq!(found(&set), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_others_may_write_to_is_no_cache() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("own");
        create_private_folder(&own).expect("created");
        let mode = std::fs::metadata(&own).expect("a folder").permissions();
        assert_eq!(mode.mode() & 0o777, 0o700);
        check_private_folder(&own).expect("a private folder");
        for (mode, said) in [
            (0o777, "everyone may write"),
            (0o702, "everyone may write"),
            (0o770, "its group may write"),
            (0o720, "its group may write"),
        ] {
            std::fs::set_permissions(&own, PermissionsExt::from_mode(mode)).expect("changed");
            let error = check_private_folder(&own).expect_err("a folder of others");
            let error = error.to_string();
            assert!(error.contains(said), "{error}");
            assert!(error.contains(&format!("found mode {mode:o}")), "{error}");
        }
        std::fs::set_permissions(&own, PermissionsExt::from_mode(0o755)).expect("changed");
        check_private_folder(&own).expect("a folder that others may read");
        check_private_folder(folder.path().join("missing")).expect("no folder yet");
    }
}
