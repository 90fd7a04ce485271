//! NVRTC, and the cache of what it made. The cache is safe to delete at any time. A file's name is made of the source, in
//! which a model's dimensions are constants, the architecture and this library's version; not of NVRTC's, so that kernels
//! which were built elsewhere are found where there is no NVRTC.

use std::ffi::{CStr, CString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result, sys};

use crate::error::{Error, Result};

/// Quotients and roots are exact to two units in the last place: more would take many times the instructions.
const OPTIONS: [&str; 4] = [
    "--std=c++17",
    "--extra-device-vectorization",
    "--prec-div=false",
    "--prec-sqrt=false",
];

const MAGIC: &[u8; 8] = b"WLCUBIN2";

/// Machine code for `architecture`, such as `sm_90`, from the cache or from NVRTC.
pub(crate) fn cubin(source: &str, architecture: &str) -> Result<Vec<u8>> {
    let path = cache_folder().map(|folder| folder.join(file_name(source, architecture)));
    if let Some(image) = path.as_ref().and_then(|path| read(path, architecture)) {
        return Ok(image);
    }
    let image = compile(source, architecture)?;
    if let Some(path) = path {
        // Without a cache the next start compiles again; that is no reason to stop.
        let _ = write(&path, architecture, &image);
    }
    Ok(image)
}

fn error(reason: impl Into<String>) -> Error {
    Error::Device {
        device: "kernels".into(),
        reason: reason.into(),
    }
}

/// Compiles for `architecture` into `folder`, which becomes a device's cache.
pub(crate) fn ahead(source: &str, architecture: &str, folder: &Path) -> Result<()> {
    let path = folder.join(file_name(source, architecture));
    let image = compile(source, architecture)?;
    write(&path, architecture, &image).map_err(|e| Error::io(path, "cannot write", e))
}

/// Whether NVRTC is installed.
pub(crate) fn is_possible() -> bool {
    // SAFETY: only looks for the library.
    unsafe { sys::is_culib_present() }
}

/// NVRTC's; 0 if it does not say.
fn major_version() -> i32 {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are places for a number.
    let status = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    match status {
        sys::nvrtcResult::NVRTC_SUCCESS => major,
        _ => 0,
    }
}

fn compile(source: &str, architecture: &str) -> Result<Vec<u8>> {
    if !is_possible() {
        return Err(error(format!(
            "NVRTC (libnvrtc) is not installed and there are no kernels for {architecture} in the cache; install it, \
             or run `waterline kernels` where it is and bring the folder along"
        )));
    }
    let failed = |what: &str, e: result::NvrtcError| error(format!("{what}: {e:?}"));
    let text = CString::new(source).map_err(|_| error("a kernel source with a zero byte"))?;
    let program = result::create_program(&text, Some(c"waterline.cu"))
        .map_err(|e| failed("NVRTC cannot begin", e))?;
    // Products of groups of warps are only in the target that this chip alone runs.
    let target = match architecture {
        "sm_90" => "sm_90a",
        other => other,
    };
    let mut options = vec![format!("--gpu-architecture={target}")];
    options.extend(OPTIONS.map(String::from));
    if major_version() >= 13 {
        // In as many threads as there are processors.
        options.push("--split-compile=0".into());
    }
    // SAFETY: the program is valid until it is destroyed below.
    let compiled = unsafe { result::compile_program(program, &options) };
    let image = match compiled {
        Ok(()) => {
            let mut size = 0;
            // SAFETY: the program was compiled for a real architecture, so it has machine code of `size` bytes.
            let status = unsafe { sys::nvrtcGetCUBINSize(program, &mut size) };
            let mut image = vec![0u8; size];
            // SAFETY: as above.
            let copied = unsafe { sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()) };
            match (status, copied) {
                (sys::nvrtcResult::NVRTC_SUCCESS, sys::nvrtcResult::NVRTC_SUCCESS) => Ok(image),
                _ => Err(error(format!("NVRTC made no code for {architecture}"))),
            }
        }
        Err(e) => {
            // SAFETY: the program is valid.
            let log = unsafe { result::get_program_log(program) }.unwrap_or_default();
            let log: Vec<u8> = log.iter().map(|&c| c as u8).collect();
            let log = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy);
            let log = log.unwrap_or_default();
            Err(failed(&format!("NVRTC for {architecture}: {log}"), e))
        }
    };
    // SAFETY: the program is not used any more.
    let _ = unsafe { result::destroy_program(program) };
    image
}

fn cache_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = set("WATERLINE_KERNELS") {
        return Some(folder.into());
    }
    let base = set("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))?;
    Some(base.join("waterline").join("kernels"))
}

fn file_name(source: &str, architecture: &str) -> String {
    let hash = |seed: u64| {
        let mut hasher = DefaultHasher::new();
        (seed, source, OPTIONS, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
        hasher.finish()
    };
    format!("{architecture}-{:016x}{:016x}.cubin", hash(0), hash(1))
}

/// What a cached file's image is checked with: one that was made for another architecture is as useless as a damaged one.
fn checksum(architecture: &str, image: &[u8]) -> [u8; 4] {
    let mut hash = crc32fast::Hasher::new();
    hash.update(architecture.as_bytes());
    hash.update(image);
    hash.finalize().to_le_bytes()
}

/// A whole cached image for `architecture`, or none.
fn read(path: &Path, architecture: &str) -> Option<Vec<u8>> {
    let bytes = std::fs::read(path).ok()?;
    let (head, image) = bytes.split_at_checked(MAGIC.len() + 4)?;
    let sum = checksum(architecture, image);
    (head[..MAGIC.len()] == *MAGIC && head[MAGIC.len()..] == sum).then(|| image.to_vec())
}

fn write(path: &Path, architecture: &str, image: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().expect("a file in a folder");
    std::fs::create_dir_all(folder)?;
    let whole = [MAGIC.as_slice(), &checksum(architecture, image), image].concat();
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    std::fs::write(&partial, whole)?;
    std::fs::rename(&partial, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_kernel_is_used_as_a_whole_and_on_its_architecture_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(file_name("source", "sm_90"));
        assert_eq!(read(&path, "sm_90"), None);
        write(&path, "sm_90", b"machine code").expect("written");
        assert_eq!(read(&path, "sm_90").as_deref(), Some(&b"machine code"[..]));

        let renamed = folder.path().join(file_name("source", "sm_87"));
        assert_ne!(path, renamed);
        std::fs::copy(&path, &renamed).expect("copied");
        assert_eq!(read(&renamed, "sm_87"), None);

        let mut bytes = std::fs::read(&path).expect("read");
        *bytes.last_mut().expect("bytes") ^= 1;
        std::fs::write(&path, bytes).expect("written");
        assert_eq!(read(&path, "sm_90"), None);
    }
}
