//! Machine code of kernels: from the cache, or from NVRTC.

use std::ffi::CString;
use std::path::Path;

use crate::cuda::driver::cache::{self, Cache};
use crate::cuda::driver::nvrtc::Nvrtc;
use crate::error::{Error, Result};

/// Quotients and roots are exact to two units in the last place; exact ones take many times the instructions.
const OPTIONS: [&str; 4] = [
    "--std=c++17",
    "--extra-device-vectorization",
    "--prec-div=false",
    "--prec-sqrt=false",
];

/// Returns the compute capability that `sm_87` or `compute_87` names, as 87; 0 for other names.
pub(crate) fn capability(architecture: &str) -> i32 {
    let number = architecture.rsplit('_').next().unwrap_or_default();
    number.parse().unwrap_or_default()
}

/// Returns machine code for `architecture`, such as `sm_90`, or PTX for one such as `compute_90`, from the cache or from NVRTC.
pub(crate) fn cubin(source: &str, architecture: &str) -> Result<Vec<u8>> {
    let key = cache::key(source, &options(architecture));
    let cache = Cache::from_environment();
    if let Some(image) = cache.as_ref().ok().and_then(|cache| cache.read(&key)) {
        return Ok(image);
    }
    let nvrtc = Nvrtc::get().map_err(|missing| {
        let where_else = match &cache {
            Ok(cache) => format!("the cache {} has no kernels", cache.folder().display()),
            Err(reason) => reason.clone(),
        };
        error(format!(
            "{missing}, and {where_else} for {architecture} and this model; install it, or run `waterline kernels` where it \
             is installed and copy the folder here"
        ))
    })?;
    let image = compile(nvrtc, source, architecture)?;
    if let Ok(cache) = cache {
        // A failed write is not an error: the next start compiles again.
        let _ = cache.write(&key, &compiler(nvrtc), &image);
    }
    Ok(image)
}

/// Compiles for `architecture` into `folder`, which is to be a device's cache and may have the kernels already.
pub(crate) fn into_folder(source: &str, architecture: &str, folder: &Path) -> Result<()> {
    let nvrtc = Nvrtc::get().map_err(error)?;
    let cache = Cache::at(folder.into());
    let key = cache::key(source, &options(architecture));
    if cache.read(&key).is_some() {
        return Ok(());
    }
    let image = compile(nvrtc, source, architecture)?;
    let written = cache.write(&key, &compiler(nvrtc), &image);
    written.map_err(|e| Error::io(folder.join(key), "cannot write", e))
}

/// Whether NVRTC is installed.
pub(crate) fn is_possible() -> bool {
    Nvrtc::get().is_ok()
}

fn error(reason: impl Into<String>) -> Error {
    Error::Device {
        device: "kernels".into(),
        reason: reason.into(),
    }
}

/// Returns the compiler's name, which a cached file records for its readers.
fn compiler(nvrtc: &Nvrtc) -> String {
    let (major, minor) = nvrtc.version;
    format!("NVRTC {major}.{minor}")
}

/// Returns the options that determine the machine code.
fn options(architecture: &str) -> Vec<String> {
    // wgmma exists only in a target that runs on this chip alone.
    let target = match architecture {
        "sm_90" => "sm_90a",
        other => other,
    };
    let mut options = vec![format!("--gpu-architecture={target}")];
    options.extend(OPTIONS.map(String::from));
    options
}

fn compile(nvrtc: &Nvrtc, source: &str, architecture: &str) -> Result<Vec<u8>> {
    let text = CString::new(source).map_err(|_| error("a kernel source contains a zero byte"))?;
    let mut options = options(architecture);
    if nvrtc.version.0 >= 13 {
        // Uses as many threads as there are cores.
        options.push("--split-compile=0".into());
    }
    let is_virtual = architecture.starts_with("compute_");
    let image = nvrtc.compile(&text, &options, is_virtual);
    image.map_err(|reason| error(format!("NVRTC for {architecture}: {reason}")))
}
