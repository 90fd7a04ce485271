//! Files and nothing else: a folder, device or pipe under the name of a file is refused before it is touched.

use std::fs::{File, Metadata};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Opens a file for reading. Opening a pipe would wait for its other end, and a device may have none.
pub fn open_file(path: impl AsRef<Path>) -> io::Result<File> {
    check(&std::fs::metadata(&path)?)?;
    File::open(path)
}

/// Refuses what is no file.
fn check(found: &Metadata) -> io::Result<()> {
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

/// A file that is being written. It appears under its name when it is whole, and not before: until [`NewFile::finish`] has succeeded, whatever had its name is still there, untouched;
/// dropped before, it leaves nothing behind.
pub struct NewFile {
    path: PathBuf,
    file: BufWriter<File>,
    temporary: Temporary,
}

/// A name that is removed unless it was given up for another.
struct Temporary {
    path: PathBuf,
    keep: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.keep {
            // The error that made us give up is the one to report.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl NewFile {
    /// Starts the file that will be `path`. Where that is a link, the file that it leads to will be replaced.
    ///
    /// # Errors
    /// If `path` is something other than a file, such as a folder or a device, or is a file that may not be written, or if
    /// its folder cannot be written.
    pub fn create(path: impl AsRef<Path>) -> io::Result<NewFile> {
        let path = path.as_ref();
        // What does not exist has no other name.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let replaced = std::fs::metadata(&path).ok();
        if let Some(found) = &replaced {
            check(found)?;
            if found.permissions().readonly() {
                let reason = "the file is read-only";
                return Err(io::Error::new(ErrorKind::PermissionDenied, reason));
            }
        }
        // Other threads may be writing the same file.
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mut temporary = path.clone().into_os_string();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        temporary.push(format!(".{}.{count}.tmp", std::process::id()));
        let temporary = PathBuf::from(temporary);
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(&temporary)?;
        let new = NewFile {
            path,
            file: BufWriter::with_capacity(1 << 20, file),
            temporary: Temporary {
                path: temporary,
                keep: false,
            },
        };
        if let Some(found) = replaced {
            new.file.get_ref().set_permissions(found.permissions())?;
        }
        Ok(new)
    }

    /// Completes the file: everything is on the disk and the name is in place when this returns.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        std::fs::rename(&self.temporary.path, &self.path)?;
        self.temporary.keep = true;
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

/// Makes the rename durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(parent)?.sync_all()?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().to_string_lossy().into_owned()
        };
        std::fs::read_dir(folder).unwrap().map(name).collect()
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

        // Two at once: the later one to finish stays.
        let mut first = NewFile::create(&path).unwrap();
        let mut second = NewFile::create(&path).unwrap();
        first.write_all(b"first").unwrap();
        second.write_all(b"second").unwrap();
        second.finish().unwrap();
        first.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        assert_eq!(names(folder.path()), ["a"]);
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
