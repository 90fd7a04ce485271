//! Files and folders that belong to their user alone: states, caches, keys.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::regular_file::check;

/// Creates a folder and its missing parents, for private files. Only the owner may open the new folders (mode 0700).
pub fn create_private_folder(folder: impl AsRef<Path>) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// The program's folder in the user's cache folder: in `XDG_CACHE_HOME`, on Windows in `LOCALAPPDATA`, elsewhere in `.cache` of `HOME`.
/// It need not exist.
pub fn cache_folder() -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let caches = absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("LOCALAPPDATA"))
        .or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(caches.join("waterline"))
}

/// Refuses a folder whose contents another user may replace: it belongs to another user, its group or everyone may write to it, or
/// everyone may rename one of the folders that lead to it. A folder that does not exist passes.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`], with a sentence that names the folder.
#[cfg(unix)]
pub fn check_private_folder(folder: impl AsRef<Path>) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let folder = folder.as_ref();
    let refused = |reason: String| Err(io::Error::new(ErrorKind::PermissionDenied, reason));
    let Ok(whole) = folder.canonicalize() else {
        return Ok(());
    };
    let found = std::fs::metadata(&whole)?;
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if owner != 0 && owner != user() {
        return refused(format!(
            "the folder {} belongs to another user (found owner {owner}, expected {})",
            folder.display(),
            user()
        ));
    }
    if mode & 0o022 != 0 {
        let others = if mode & 0o002 != 0 {
            "everyone"
        } else {
            "its group"
        };
        return refused(format!(
            "{others} may write to the folder {} (found mode {mode:o}, expected 700)",
            folder.display()
        ));
    }
    for parent in whole.ancestors().skip(1) {
        let mode = std::fs::metadata(parent)?.mode() & 0o7777;
        // In a sticky folder such as /tmp only owners rename and remove.
        if mode & 0o1002 == 0o0002 {
            return refused(format!(
                "everyone may rename the folders in {} (found mode {mode:o}), such as {}",
                parent.display(),
                folder.display()
            ));
        }
    }
    Ok(())
}

/// There are no modes to check.
#[cfg(not(unix))]
pub fn check_private_folder(_folder: impl AsRef<Path>) -> io::Result<()> {
    Ok(())
}

/// Opens a file of a private folder for reading, and for setting its times. A link is refused, as is a file of another user.
pub fn open_private_file(path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    let refused = |reason: &str| Err(io::Error::new(ErrorKind::PermissionDenied, reason));
    let listed = std::fs::symlink_metadata(path)?;
    if listed.is_symlink() {
        return refused("it is a link, not a file");
    }
    check(&listed)?;
    // Windows sets the times of files that are open for writing only.
    let file = File::options().read(true).write(cfg!(windows)).open(path)?;
    let opened = file.metadata()?;
    check(&opened)?;
    if is_other(&listed, &opened) {
        return refused("it was replaced while it was opened");
    }
    if owner(&opened) != user() {
        return refused("it belongs to another user");
    }
    Ok(file)
}

/// Whether two files differ, on systems with file numbers.
#[cfg(unix)]
fn is_other(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) != (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn is_other(_one: &Metadata, _other: &Metadata) -> bool {
    false
}

/// The owner of a file, on systems with file owners.
#[cfg(unix)]
pub(crate) fn owner(file: &Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::uid(file)
}

#[cfg(not(unix))]
pub(crate) fn owner(_file: &Metadata) -> u32 {
    0
}

/// The user of this process.
#[cfg(unix)]
fn user() -> u32 {
    // SAFETY: by POSIX the function takes no arguments, cannot fail and returns a number.
    unsafe extern "C" {
        safe fn geteuid() -> u32;
    }
    geteuid()
}

#[cfg(not(unix))]
fn user() -> u32 {
    0
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::regular_file::NewFile;

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("a/b");
        assert!(check_private_folder(&folder).is_ok());
        create_private_folder(&folder).unwrap();
        let said = || check_private_folder(&folder).unwrap_err().to_string();
        for (mode, part) in [
            (0o777, "everyone may write"),
            (0o1777, "found mode 1777"),
            (0o770, "its group may write"),
        ] {
            set_mode(&folder, mode);
            assert!(said().contains(part), "{}", said());
        }
        for mode in [0o700, 0o755, 0o711] {
            set_mode(&folder, mode);
            check_private_folder(&folder).unwrap();
        }
        // A link leads to the folder that it names.
        let link = place.path().join("link");
        symlink(&folder, &link).unwrap();
        check_private_folder(&link).unwrap();
        set_mode(folder.parent().unwrap(), 0o777);
        assert!(said().contains("everyone may rename"), "{}", said());
        assert!(check_private_folder(&link).is_err());
        set_mode(folder.parent().unwrap(), 0o1777);
        check_private_folder(&folder).unwrap();
    }

    #[test]
    fn links_are_neither_read_nor_written_through() {
        let place = tempfile::tempdir().unwrap();
        let (target, link) = (place.path().join("target"), place.path().join("link"));
        std::fs::write(&target, "the user's").unwrap();
        symlink(&target, &link).unwrap();
        let said = open_private_file(&link).unwrap_err().to_string();
        assert!(said.contains("a link"), "{said}");
        open_private_file(&target).unwrap();
        let mut file = NewFile::replace_private(&link).unwrap();
        file.write_all(b"new").unwrap();
        file.finish().unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"the user's");
        assert_eq!(std::fs::read(&link).unwrap(), b"new");
        assert!(!std::fs::symlink_metadata(&link).unwrap().is_symlink());
        let second = NewFile::replace_private(&link).unwrap();
        let error = second.finish_first().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&link).unwrap(), b"new");
    }
}
