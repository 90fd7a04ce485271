//! A GPU's own counter, through NVML: a library of the driver, loaded on first use. It is renewed every
//! 20 to 100 ms, so a run of less than a few seconds is inaccurate.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use libloading::Library;

use super::Counter;

type Status = c_int;
type Handle = *mut c_void;
type Init = unsafe extern "C" fn() -> Status;
type ByIndex = unsafe extern "C" fn(c_uint, *mut Handle) -> Status;
type ByUuid = unsafe extern "C" fn(*const c_char, *mut Handle) -> Status;
type TotalEnergy = unsafe extern "C" fn(Handle, *mut c_ulonglong) -> Status;

/// A GPU that counts its energy: Volta and later.
pub struct Gpu {
    handle: Handle,
    total: TotalEnergy,
    last: u64,
    shutdown: Init,
    /// The functions are its; it goes last, and after `drop`.
    library: Library,
}

impl Gpu {
    /// GPU number `ordinal` of those that CUDA shows; none without NVML or where the GPU does not count.
    pub fn new(ordinal: usize) -> Option<Self> {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        // SAFETY: the driver's own library, whose initialisation only loads it.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        // SAFETY: the types are those of nvml.h.
        let (init, shutdown, total) = unsafe {
            (
                *library.get::<Init>(b"nvmlInit_v2\0").ok()?,
                *library.get::<Init>(b"nvmlShutdown\0").ok()?,
                *library
                    .get::<TotalEnergy>(b"nvmlDeviceGetTotalEnergyConsumption\0")
                    .ok()?,
            )
        };
        // SAFETY: it may be called at any time.
        if unsafe { init() } != 0 {
            return None;
        }
        let mut gpu = Gpu {
            handle: std::ptr::null_mut(),
            total,
            last: 0,
            shutdown,
            library,
        };
        gpu.handle = gpu.find(&name(visible.as_deref(), ordinal)?)?;
        gpu.last = gpu.millijoules()?;
        Some(gpu)
    }

    fn find(&self, name: &Name) -> Option<Handle> {
        let mut handle = std::ptr::null_mut();
        let status = match name {
            Name::Index(index) => {
                // SAFETY: the type is that of nvml.h.
                let by_index = unsafe {
                    self.library
                        .get::<ByIndex>(b"nvmlDeviceGetHandleByIndex_v2\0")
                };
                // SAFETY: NVML is initialised, and there is room for a handle.
                unsafe { by_index.ok()?(*index, &mut handle) }
            }
            Name::Uuid(uuid) => {
                // SAFETY: the type is that of nvml.h.
                let by_uuid = unsafe { self.library.get::<ByUuid>(b"nvmlDeviceGetHandleByUUID\0") };
                // SAFETY: NVML is initialised, the text ends with a zero byte, and there is room for a handle.
                unsafe { by_uuid.ok()?(uuid.as_ptr(), &mut handle) }
            }
        };
        (status == 0).then_some(handle)
    }

    /// Since the driver was loaded.
    fn millijoules(&self) -> Option<u64> {
        let mut total = 0;
        // SAFETY: NVML gave the handle and is initialised, and there is room for the number.
        let status = unsafe { (self.total)(self.handle, &mut total) };
        (status == 0).then_some(total)
    }
}

impl Counter for Gpu {
    fn joules(&mut self) -> f64 {
        let now = self.millijoules().unwrap_or(self.last);
        let used = now.saturating_sub(std::mem::replace(&mut self.last, now));
        1e-3 * used as f64
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: the other half of the initialisation; the handle is not used any more.
        unsafe { (self.shutdown)() };
    }
}

/// How NVML names a GPU.
#[derive(Debug, PartialEq)]
enum Name {
    Index(c_uint),
    Uuid(std::ffi::CString),
}

/// NVML's name of CUDA's GPU number `ordinal`, where CUDA_VISIBLE_DEVICES is `visible`: NVML counts all GPUs.
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

    /// Without a GPU there is no counter; with one it counts on.
    #[test]
    fn a_counter_never_goes_back() {
        if let Some(mut gpu) = Gpu::new(0) {
            assert!(gpu.joules() >= 0.0 && gpu.joules() >= 0.0);
        }
    }
}
