//! A GPU as seen through NVML, a library of the driver that is loaded on first use.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use libloading::Library;

type Status = c_int;
type Handle = *mut c_void;
type Init = unsafe extern "C" fn() -> Status;
type ByIndex = unsafe extern "C" fn(c_uint, *mut Handle) -> Status;
type ByUuid = unsafe extern "C" fn(*const c_char, *mut Handle) -> Status;
type Long = unsafe extern "C" fn(Handle, *mut c_ulonglong) -> Status;
type ClockInfo = unsafe extern "C" fn(Handle, c_uint, *mut c_uint) -> Status;

/// nvmlClockType_t: the clock of the multiprocessors.
const SM: c_uint = 1;

/// Reasons of nvmlDeviceGetCurrentClocksThrottleReasons that slow a GPU below its requested clocks, in words.
const REASONS: [(c_ulonglong, &str); 5] = [
    (0x4, "its power limit"),
    (0x8, "a hardware slowdown"),
    (0x20, "its temperature"),
    (0x40, "its temperature, by hardware"),
    (0x80, "a power brake"),
];

/// A GPU in NVML.
pub struct Gpu {
    handle: Handle,
    shutdown: Init,
    /// `shutdown` belongs to this library, so the library is dropped last, after `drop` has run.
    library: Library,
}

impl Gpu {
    /// Opens CUDA's GPU number `ordinal`; `None` without NVML.
    pub fn new(ordinal: usize) -> Option<Self> {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        // SAFETY: this is the driver's library, whose initialisation only loads it.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        // SAFETY: the types are those in nvml.h.
        let (init, shutdown) = unsafe {
            (
                *library.get::<Init>(b"nvmlInit_v2\0").ok()?,
                *library.get::<Init>(b"nvmlShutdown\0").ok()?,
            )
        };
        // SAFETY: the function may be called at any time.
        if unsafe { init() } != 0 {
            return None;
        }
        let mut gpu = Gpu {
            handle: std::ptr::null_mut(),
            shutdown,
            library,
        };
        gpu.handle = gpu.find(&name(visible.as_deref(), ordinal)?)?;
        Some(gpu)
    }

    fn find(&self, name: &Name) -> Option<Handle> {
        let mut handle = std::ptr::null_mut();
        let status = match name {
            Name::Index(index) => {
                // SAFETY: the type is that in nvml.h.
                let by_index = unsafe {
                    self.library
                        .get::<ByIndex>(b"nvmlDeviceGetHandleByIndex_v2\0")
                };
                // SAFETY: NVML is initialised, and there is room for a handle.
                unsafe { by_index.ok()?(*index, &mut handle) }
            }
            Name::Uuid(uuid) => {
                // SAFETY: the type is that in nvml.h.
                let by_uuid = unsafe { self.library.get::<ByUuid>(b"nvmlDeviceGetHandleByUUID\0") };
                // SAFETY: NVML is initialised, the text ends with a zero byte, and there is room for a handle.
                unsafe { by_uuid.ok()?(uuid.as_ptr(), &mut handle) }
            }
        };
        (status == 0).then_some(handle)
    }

    /// Returns the 64-bit number that the function with this name writes.
    fn number(&self, function: &[u8]) -> Option<u64> {
        let mut number = 0;
        // SAFETY: the functions that are passed below have this type in nvml.h.
        let function = unsafe { self.library.get::<Long>(function) }.ok()?;
        // SAFETY: the handle comes from NVML, which is initialised, and there is room for the number.
        let status = unsafe { function(self.handle, &mut number) };
        (status == 0).then_some(number)
    }

    /// Millijoules since the driver was loaded, on Volta and later. The counter is updated every 20 to 100 ms.
    pub fn millijoules(&self) -> Option<u64> {
        self.number(b"nvmlDeviceGetTotalEnergyConsumption\0")
    }

    /// The clock of the multiprocessors, in MHz.
    pub fn megahertz(&self) -> Option<f64> {
        let mut clock = 0;
        // SAFETY: the type is that in nvml.h.
        let function =
            unsafe { self.library.get::<ClockInfo>(b"nvmlDeviceGetClockInfo\0") }.ok()?;
        // SAFETY: the handle comes from NVML, which is initialised, and there is room for the number.
        let status = unsafe { function(self.handle, SM, &mut clock) };
        (status == 0).then(|| f64::from(clock))
    }

    /// Returns the reasons why the GPU is slowed at this moment, in words.
    pub fn throttled_by(&self) -> Vec<&'static str> {
        let bits = self.number(b"nvmlDeviceGetCurrentClocksThrottleReasons\0");
        in_words(bits.unwrap_or(0))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: this undoes the initialisation, and the handle is not used afterwards.
        unsafe { (self.shutdown)() };
    }
}

fn in_words(bits: u64) -> Vec<&'static str> {
    let set = REASONS.iter().filter(|(bit, _)| bits & bit != 0);
    set.map(|(_, words)| *words).collect()
}

/// The name of a GPU in NVML.
#[derive(Debug, PartialEq)]
enum Name {
    Index(c_uint),
    Uuid(std::ffi::CString),
}

/// Returns NVML's name of CUDA's GPU number `ordinal`. NVML counts all GPUs, CUDA only those in CUDA_VISIBLE_DEVICES (`visible`).
fn name(visible: Option<&str>, ordinal: usize) -> Option<Name> {
    let Some(visible) = visible else {
        return c_uint::try_from(ordinal).ok().map(Name::Index);
    };
    let entry = visible.split(',').nth(ordinal)?.trim();
    match entry.parse() {
        Ok(index) => Some(Name::Index(index)),
        Err(_) => std::ffi::CString::new(entry).ok().map(Name::Uuid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_renumbers_gpus() {
        assert_eq!(name(None, 2), Some(Name::Index(2)));
        assert_eq!(name(Some("3, 1"), 1), Some(Name::Index(1)));
        assert_eq!(name(Some("GPU-5"), 0), Some(Name::Uuid(c"GPU-5".into())));
        assert_eq!(name(Some("3"), 1), None);
    }

    #[test]
    fn idle_and_chosen_clocks_are_no_throttling() {
        assert!(in_words(0x1 | 0x2 | 0x10 | 0x100).is_empty());
        assert_eq!(in_words(0x24), ["its power limit", "its temperature"]);
    }
}
