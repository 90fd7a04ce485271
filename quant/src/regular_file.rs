//! Regular files only: a folder, device or pipe under the name of a file is refused before it is opened.

use std::fs::{File, Metadata};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::private_file::owner;

/// Opens a file for reading. Other kinds are refused first, since opening a pipe would wait for its other end.
pub fn open_file(path: impl AsRef<Path>) -> io::Result<File> {
    check(&std::fs::metadata(&path)?)?;
    File::open(path)
}

/// Reads a file of at most `limit` bytes.
///
/// # Errors
/// Also if the path is not a regular file, or the file is larger than `limit`.
pub fn read_file(path: impl AsRef<Path>, limit: u64) -> io::Result<Vec<u8>> {
    let too_large = || {
        let reason = format!("the file has more than the {limit} bytes that are allowed");
        io::Error::new(ErrorKind::FileTooLarge, reason)
    };
    let file = open_file(path)?;
    let length = file.metadata()?.len();
    if length > limit {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length as usize)?;
    // The file may grow while it is read.
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        Err(too_large())
    } else {
        Ok(bytes)
    }
}

/// Refuses directories and everything else that is not a regular file.
pub(crate) fn check(found: &Metadata) -> io::Result<()> {
    let (kind, reason) = match (found.is_file(), found.is_dir()) {
        (true, _) => return Ok(()),
        (_, true) => (ErrorKind::IsADirectory, "it is a folder, not a file"),
        _ => (
            ErrorKind::InvalidInput,
            "it is a device, a pipe or a socket, not a file",
        ),
    };
    Err(io::Error::new(kind, reason))
}

/// A file being written. It appears under its name only when complete: until [`NewFile::finish`] succeeds, an earlier file of that name
/// stays untouched. Dropping it earlier leaves nothing.
pub struct NewFile {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
}

/// Prefix and suffix of a temporary file's name, with random letters and digits in between. No other program writes such names.
const TEMPORARY: [&str; 2] = [".waterline-", ".partial"];
/// Number of random letters and digits.
const RANDOM: usize = 12;
/// A temporary file unmodified for this long was left by a killed run.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// Read permissions of a new file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readers {
    /// As the user's umask allows, or as the replaced file had it.
    Usual,
    /// Only the owner may read it.
    Owner,
}

impl NewFile {
    /// Starts writing the file that will be `path`. If `path` is a link, its target is replaced. A replaced file passes on its mode.
    ///
    /// Temporary files that killed runs of this user left in the folder are removed once they are a day old.
    ///
    /// # Errors
    /// If `path` exists and is not a regular file (such as a folder, a device or a circular link), if the file is read-only, or if its
    /// folder cannot be written.
    pub fn create(path: impl AsRef<Path>) -> io::Result<NewFile> {
        Self::start(path.as_ref(), Readers::Usual)
    }

    /// Like [`NewFile::create`], for private data such as a conversation: only the owner may read and write the file (mode 0600), whatever
    /// the mode of the replaced file.
    ///
    /// # Errors
    /// As for [`NewFile::create`].
    pub fn create_private(path: impl AsRef<Path>) -> io::Result<NewFile> {
        Self::start(path.as_ref(), Readers::Owner)
    }

    /// Like [`NewFile::create_private`], for a file that the program names: if `path` is a link, the link is replaced and its target stays.
    ///
    /// # Errors
    /// As for [`NewFile::create`].
    pub fn replace_private(path: impl AsRef<Path>) -> io::Result<NewFile> {
        Self::begin(path.as_ref().to_path_buf(), None, Readers::Owner)
    }

    fn start(path: &Path, readers: Readers) -> io::Result<NewFile> {
        let path = match path.canonicalize() {
            Ok(path) => path,
            // A file that does not exist yet has no canonical name.
            Err(e) if e.kind() == ErrorKind::NotFound => path.to_path_buf(),
            Err(e) => return Err(e),
        };
        let replaced = std::fs::metadata(&path).ok();
        if let Some(found) = &replaced {
            check(found)?;
            if found.permissions().readonly() {
                let reason = "the file is read-only";
                return Err(io::Error::new(ErrorKind::PermissionDenied, reason));
            }
        }
        Self::begin(path, replaced, readers)
    }

    /// Creates the temporary file that replaces `path`, and `replaced` there.
    fn begin(path: PathBuf, replaced: Option<Metadata>, readers: Readers) -> io::Result<NewFile> {
        if path.file_name().is_none() {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "the path names no file",
            ));
        }
        let folder = folder(&path);
        let mut builder = tempfile::Builder::new();
        builder
            .prefix(TEMPORARY[0])
            .rand_bytes(RANDOM)
            .suffix(TEMPORARY[1]);
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(
            match readers {
                Readers::Usual => 0o666,
                Readers::Owner => 0o600,
            },
        ));
        let file = builder.tempfile_in(folder).map_err(system_error)?;
        if let (Some(found), Readers::Usual) = (replaced, readers) {
            file.as_file().set_permissions(found.permissions())?;
        }
        remove_abandoned(folder, &file.as_file().metadata()?);
        Ok(NewFile {
            path,
            file: BufWriter::with_capacity(1 << 20, file),
        })
    }

    /// Completes the file: when this returns, all data is on disk and the name is in place.
    pub fn finish(self) -> io::Result<()> {
        let file = self.file.into_inner()?;
        file.as_file().sync_all()?;
        file.persist(&self.path).map_err(|e| e.error)?;
        sync_folder(&self.path)
    }

    /// Like [`NewFile::finish`], but never replaces a file.
    ///
    /// # Errors
    /// Also if a file of that name has appeared: [`ErrorKind::AlreadyExists`].
    pub fn finish_first(self) -> io::Result<()> {
        let file = self.file.into_inner()?;
        file.as_file().sync_all()?;
        file.persist_noclobber(&self.path).map_err(|e| e.error)?;
        sync_folder(&self.path)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The system's own error: `tempfile` adds the name of the temporary file, but callers name the final file.
fn system_error(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.source());
    let system = inner.and_then(|inner| inner.downcast_ref::<io::Error>());
    match system.and_then(io::Error::raw_os_error) {
        Some(code) => io::Error::from_raw_os_error(code),
        None => error,
    }
}

/// The folder that contains a file.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Removes the temporary files that killed runs left in `folder`: files with the name pattern and the owner of our temporary files, such as
/// `own`, once they are abandoned. Files that cannot be read or removed stay.
fn remove_abandoned(folder: &Path, own: &Metadata) {
    let is_abandoned = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        let random = name
            .to_str()
            .and_then(|name| name.strip_prefix(TEMPORARY[0]))
            .and_then(|rest| rest.strip_suffix(TEMPORARY[1]));
        let is_random = |text: &str| {
            text.len() == RANDOM && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        if !random.is_some_and(is_random) {
            return false;
        }
        // The metadata of an entry is that of the link itself, not of its target.
        let Ok(found) = entry.metadata() else {
            return false;
        };
        let age = found.modified().ok().and_then(|time| time.elapsed().ok());
        found.is_file() && owner(&found) == owner(own) && age.is_some_and(|age| age > ABANDONED)
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(is_abandoned) {
        let _ = std::fs::remove_file(entry.path());
    }
}

/// Syncs the folder, which makes the rename durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        File::open(folder(path))?.sync_all()?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(unix)]
    use crate::private_file::create_private_folder;

    fn names(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().to_string_lossy().into_owned()
        };
        std::fs::read_dir(folder).unwrap().map(name).collect()
    }

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read_file(&path, 4).unwrap(), b"four");
        let error = read_file(&path, 3).unwrap_err().to_string();
        assert!(error.contains("more than the 3 bytes"), "{error}");
        assert!(read_file(folder.path(), 4).is_err());
        assert!(read_file("/dev/zero", 4).is_err());
    }

    #[test]
    fn a_file_is_replaced_only_when_the_new_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "old").unwrap();
        let mut given_up = NewFile::create(&path).unwrap();
        given_up.write_all(b"half").unwrap();
        given_up.flush().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        drop(given_up);
        assert_eq!(names(folder.path()), ["a"]);

        // Two writers at once: the last one to finish wins.
        let mut first = NewFile::create(&path).unwrap();
        let mut second = NewFile::create(&path).unwrap();
        first.write_all(b"first").unwrap();
        second.write_all(b"second").unwrap();
        second.finish().unwrap();
        first.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn what_killed_runs_have_left_is_removed_after_a_day_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let old = std::time::SystemTime::now() - 2 * ABANDONED;
        let kept = [
            ("a.gguf.x1Y2z3.tmp", old),
            ("a.v1.notes.tmp", old),
            ("a.draft.2.tmp", old),
            (
                ".waterline-x1Y2z3x1Y2z3.partial",
                std::time::SystemTime::now(),
            ),
            (".waterline-x1Y2z3.partial", old),
            (".waterline-my notes 12.partial", old),
            (".waterline-x1Y2z3x1Y2z3.partial.txt", old),
            ("waterline-x1Y2z3x1Y2z3.partial", old),
        ];
        let abandoned = [
            (".waterline-AAAA2z3x1Y2z.partial", old),
            (".waterline-000000000000.partial", old),
        ];
        for (name, modified) in kept.iter().chain(&abandoned) {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(*modified).unwrap();
        }
        let folder_of_that_name = ".waterline-000000000001.partial";
        std::fs::create_dir(folder.path().join(folder_of_that_name)).unwrap();
        NewFile::create(folder.path().join("a"))
            .unwrap()
            .finish()
            .unwrap();
        let mut left = names(folder.path());
        left.sort();
        let mut expected: Vec<&str> = kept.iter().map(|(name, _)| *name).collect();
        expected.extend(["a", folder_of_that_name]);
        expected.sort();
        assert_eq!(left, expected);
    }

    #[test]
    fn names_of_temporary_files_are_those_that_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let long = "a".repeat(255);
        let file = NewFile::create(folder.path().join(&long)).unwrap();
        let name = names(folder.path()).remove(0);
        let old = std::time::SystemTime::now() - 2 * ABANDONED;
        file.file.get_ref().as_file().set_modified(old).unwrap();
        // A killed run does not drop its files.
        std::mem::forget(file);
        assert!(name.starts_with(TEMPORARY[0]), "{name}");
        NewFile::create(folder.path().join(&long))
            .unwrap()
            .finish()
            .unwrap();
        assert_eq!(names(folder.path()), [long]);
    }

    #[cfg(unix)]
    #[test]
    fn private_files_are_their_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        create_private_folder(&inner).unwrap();
        create_private_folder(&inner).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder.path().join("a")), 0o700);
        assert_eq!(mode(&inner), 0o700);
        let path = inner.join("state");
        for _ in 0..2 {
            let mut file = NewFile::create_private(&path).unwrap();
            file.write_all(b"mine").unwrap();
            file.finish().unwrap();
            assert_eq!(mode(&path), 0o600);
            // As if an older version, or a copy, had left the mode wider.
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_leads_in_a_circle_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        std::os::unix::fs::symlink(&a, &b).unwrap();
        std::os::unix::fs::symlink(&b, &a).unwrap();
        let error = NewFile::create(&a).err().unwrap().to_string();
        assert!(error.contains("symbolic links"), "{error}");
        assert!(std::fs::symlink_metadata(&a).unwrap().is_symlink());
    }

    #[cfg(unix)]
    #[test]
    fn the_target_of_a_link_is_replaced_and_keeps_its_mode() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        std::fs::write(&target, "old").unwrap();
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let mut file = NewFile::create(&link).unwrap();
        file.write_all(b"new").unwrap();
        file.finish().unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read(&target).unwrap(), b"new");
        let mode = std::fs::metadata(&target).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let read_only = folder.path().join("read-only");
        std::fs::write(&read_only, "kept").unwrap();
        let mut permissions = std::fs::metadata(&read_only).unwrap().permissions();
        permissions.set_readonly(true);
        std::fs::set_permissions(&read_only, permissions).unwrap();
        for (path, reason) in [
            (folder.path(), "folder"),
            (Path::new("/dev/null"), "device"),
            (&socket, "socket"),
            (&read_only, "read-only"),
            (&folder.path().join("absent/file"), "No such file"),
        ] {
            let error = NewFile::create(path).err().unwrap().to_string();
            assert!(error.contains(reason), "{}: {error}", path.display());
            if path != read_only {
                let error = open_file(path).err().unwrap().to_string();
                assert!(error.contains(reason), "{}: {error}", path.display());
            }
        }
        assert_eq!(names(folder.path()).len(), 2);
        assert!(Path::new("/dev/null").metadata().unwrap().len() == 0);
    }
}
