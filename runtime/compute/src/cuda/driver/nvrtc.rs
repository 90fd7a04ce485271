//! NVRTC, the library that compiles kernels, loaded when it is first needed.
//!
//! It is searched in this order: the file or folder that `WATERLINE_NVRTC` names, and nowhere else if that is set; the names that toolkits
//! and PyPI wheels give it, on the search path of the system's loader (`LD_LIBRARY_PATH` included); the folders of a toolkit (`CUDA_HOME`,
//! `/usr/local/cuda`); the wheels of an active virtual environment (`VIRTUAL_ENV`).

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;
use once_cell::sync::OnceCell;

type Program = *mut c_void;
type Status = c_int;
type CreateProgram = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> Status;
type CompileProgram = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status;
type Size = unsafe extern "C" fn(Program, *mut usize) -> Status;
type Bytes = unsafe extern "C" fn(Program, *mut c_char) -> Status;

/// The names of the library, the newest first.
#[cfg(not(windows))]
const NAMES: [&str; 4] = [
    "libnvrtc.so",
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so.11.2",
];
#[cfg(windows)]
const NAMES: [&str; 3] = [
    "nvrtc64_130_0.dll",
    "nvrtc64_120_0.dll",
    "nvrtc64_112_0.dll",
];

/// The library's functions.
pub(crate) struct Nvrtc {
    create_program: CreateProgram,
    destroy_program: unsafe extern "C" fn(*mut Program) -> Status,
    compile_program: CompileProgram,
    /// Functions that return the size and the bytes of each output of a compilation.
    log: (Size, Bytes),
    cubin: (Size, Bytes),
    ptx: (Size, Bytes),
    /// Major and minor.
    pub version: (c_int, c_int),
    _library: Library,
}

impl Nvrtc {
    /// Returns the library, which is loaded once per process.
    ///
    /// # Errors
    /// A sentence if the library is not installed or lacks a function.
    pub fn get() -> Result<&'static Nvrtc, String> {
        static LOADED: OnceCell<Nvrtc> = OnceCell::new();
        LOADED.get_or_try_init(|| Self::of(open()?))
    }

    fn of(library: Library) -> Result<Self, String> {
        // SAFETY: the names are NVRTC's and the types are those of its header, unchanged since CUDA 11.1.
        let found = unsafe {
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status =
                symbol(&library, c"nvrtcVersion")?;
            let (mut major, mut minor) = (0, 0);
            version(&mut major, &mut minor);
            Nvrtc {
                create_program: symbol(&library, c"nvrtcCreateProgram")?,
                destroy_program: symbol(&library, c"nvrtcDestroyProgram")?,
                compile_program: symbol(&library, c"nvrtcCompileProgram")?,
                log: (
                    symbol(&library, c"nvrtcGetProgramLogSize")?,
                    symbol(&library, c"nvrtcGetProgramLog")?,
                ),
                cubin: (
                    symbol(&library, c"nvrtcGetCUBINSize")?,
                    symbol(&library, c"nvrtcGetCUBIN")?,
                ),
                ptx: (
                    symbol(&library, c"nvrtcGetPTXSize")?,
                    symbol(&library, c"nvrtcGetPTX")?,
                ),
                version: (major, minor),
                _library: library,
            }
        };
        Ok(found)
    }

    /// Compiles a program to machine code, or to PTX that ends with a zero if `virtual_architecture`.
    ///
    /// # Errors
    /// The compiler's log.
    pub fn compile(
        &self,
        source: &CStr,
        options: &[String],
        virtual_architecture: bool,
    ) -> Result<Vec<u8>, String> {
        let options: Vec<CString> = (options.iter())
            .map(|option| CString::new(option.as_str()).map_err(|e| e.to_string()))
            .collect::<Result<_, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = std::ptr::null_mut();
        let none = std::ptr::null();
        let name = c"waterline.cu".as_ptr();
        // SAFETY: `program` is a place for a handle, the texts end with zeros, and there are no headers.
        let status =
            unsafe { (self.create_program)(&mut program, source.as_ptr(), name, 0, none, none) };
        if status != 0 {
            return Err(format!("NVRTC cannot create a program (status {status})"));
        }
        // SAFETY: the program was created above, and the options live until the call returns.
        let status =
            unsafe { (self.compile_program)(program, options.len() as c_int, options.as_ptr()) };
        let output = if virtual_architecture {
            self.ptx
        } else {
            self.cubin
        };
        let result = match status {
            0 => bytes(program, output).ok_or_else(|| "NVRTC returned no code".into()),
            _ => {
                let log = bytes(program, self.log).unwrap_or_default();
                let log = String::from_utf8_lossy(&log);
                Err(format!("status {status}: {}", log.trim_end_matches('\0')))
            }
        };
        // SAFETY: the program was created above and is not used any more.
        unsafe { (self.destroy_program)(&mut program) };
        result
    }
}

/// Looks up a function of the library.
///
/// # Safety
/// `T` is the function's type.
unsafe fn symbol<T: Copy>(library: &Library, name: &CStr) -> Result<T, String> {
    // SAFETY: as for this function.
    let found = unsafe { library.get::<T>(name.to_bytes_with_nul()) };
    found.map(|symbol| *symbol).map_err(|e| e.to_string())
}

/// Returns one output of a compiled program.
fn bytes(program: Program, (size, copy): (Size, Bytes)) -> Option<Vec<u8>> {
    let mut length = 0;
    // SAFETY: the program exists, and `length` is a place for a number.
    let status = unsafe { size(program, &mut length) };
    let mut bytes = vec![0u8; length];
    // SAFETY: the library writes as many bytes as it has reported.
    let copied = unsafe { copy(program, bytes.as_mut_ptr().cast()) };
    (status == 0 && copied == 0).then_some(bytes)
}

fn open() -> Result<Library, String> {
    if let Some(reason) = super::STATIC {
        return Err(reason.into());
    }
    if let Some(named) = std::env::var_os("WATERLINE_NVRTC").filter(|name| !name.is_empty()) {
        let named = PathBuf::from(named);
        let found = if named.is_dir() {
            in_folder(&named)
        } else {
            load(&named)
        };
        return found.ok_or_else(|| {
            format!(
                "WATERLINE_NVRTC: found {}, expected NVRTC (libnvrtc) or its folder",
                named.display()
            )
        });
    }
    let by_name = NAMES.iter().find_map(|name| load(Path::new(name)));
    let found = by_name.or_else(|| folders().iter().find_map(|folder| in_folder(folder)));
    found.ok_or_else(|| "NVRTC (libnvrtc), which compiles kernels, is not installed".into())
}

/// Returns the folders where toolkits and wheels install NVRTC.
fn folders() -> Vec<PathBuf> {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let toolkits = [of("CUDA_HOME"), Some("/usr/local/cuda".into())];
    let mut folders: Vec<PathBuf> = toolkits.into_iter().flatten().collect();
    folders.iter_mut().for_each(|folder| folder.push("lib64"));
    let entries = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    for python in of("VIRTUAL_ENV")
        .into_iter()
        .flat_map(|venv| entries(venv.join("lib")))
    {
        let packages = entries(python.join("site-packages").join("nvidia"));
        folders.extend(packages.map(|package| package.join("lib")));
    }
    folders
}

fn in_folder(folder: &Path) -> Option<Library> {
    NAMES.iter().find_map(|name| load(&folder.join(name)))
}

fn load(path: &Path) -> Option<Library> {
    // SAFETY: the library is NVRTC by its name, whose initialisers do nothing but initialise it.
    let library = unsafe { Library::new(path) }.ok()?;
    load_builtins(path.parent()?);
    Some(library)
}

/// Loads the part of NVRTC that NVRTC opens by name when it compiles, which the system's loader may not find in `folder`.
fn load_builtins(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("libnvrtc-builtins.so") || name.starts_with("nvrtc-builtins64") {
            // SAFETY: as for NVRTC itself. The library stays loaded, since nothing closes it.
            std::mem::forget(unsafe { Library::new(entry.path()) });
        }
    }
}
