//! A GPU as seen through NVML, a library of the driver that is loaded on first use.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem::ManuallyDrop;

use libloading::Library;

type Status = c_int;
type Handle = *mut c_void;
type Init = unsafe extern "C" fn() -> Status;
type ByUuid = unsafe extern "C" fn(*const c_char, *mut Handle) -> Status;
type CudaInit = unsafe extern "C" fn(c_uint) -> Status;
type DeviceOf = unsafe extern "C" fn(*mut c_int, c_int) -> Status;
type UuidOf = unsafe extern "C" fn(*mut [u8; 16], c_int) -> Status;
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
        let uuid = CString::new(uuid(ordinal)?).ok()?;
        // SAFETY: this is the driver's library, whose initialisation only loads it.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        // SAFETY: the types are those in nvml.h.
        let (init, shutdown, by_uuid) = unsafe {
            (
                *library.get::<Init>(b"nvmlInit_v2\0").ok()?,
                *library.get::<Init>(b"nvmlShutdown\0").ok()?,
                *library.get::<ByUuid>(b"nvmlDeviceGetHandleByUUID\0").ok()?,
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
        // SAFETY: NVML is initialised, the text ends with a zero byte, and there is room for a handle.
        let status = unsafe { by_uuid(uuid.as_ptr(), &mut gpu.handle) };
        (status == 0).then_some(gpu)
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

/// Returns the UUID of CUDA's GPU number `ordinal`, as NVML writes it. The numbers differ: CUDA counts only the GPUs in
/// CUDA_VISIBLE_DEVICES, the fastest first unless CUDA_DEVICE_ORDER says otherwise; NVML counts all, by their place on the bus.
fn uuid(ordinal: usize) -> Option<String> {
    // SAFETY: this is the driver's library, whose initialisation only loads it.
    let library = unsafe { Library::new("libcuda.so.1") }.ok()?;
    // It stays loaded, for its threads.
    let library = ManuallyDrop::new(library);
    // SAFETY: the types are those in cuda.h.
    let (init, device_of, uuid_of) = unsafe {
        (
            library.get::<CudaInit>(b"cuInit\0").ok()?,
            library.get::<DeviceOf>(b"cuDeviceGet\0").ok()?,
            library.get::<UuidOf>(b"cuDeviceGetUuid\0").ok()?,
        )
    };
    let (mut device, mut bytes) = (0, [0; 16]);
    // SAFETY: the functions may be called at any time, `cuInit` first, and there is room for a device and its UUID.
    let done = unsafe {
        init(0) == 0
            && device_of(&mut device, c_int::try_from(ordinal).ok()?) == 0
            && uuid_of(&mut bytes, device) == 0
    };
    done.then(|| uuid_text(&bytes))
}

/// Returns a GPU's UUID in the form of NVML and nvidia-smi.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let groups: [String; 5] = [0..4, 4..6, 6..8, 8..10, 10..16].map(|group| hex(&uuid[group]));
    format!("GPU-{}", groups.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_written_as_by_nvidia_smi() {
        let bytes = std::array::from_fn(|i| 0x11 * i as u8);
        assert_eq!(
            uuid_text(&bytes),
            "GPU-00112233-4455-6677-8899-aabbccddeeff"
        );
    }

    #[test]
    fn idle_and_chosen_clocks_are_no_throttling() {
        assert!(in_words(0x1 | 0x2 | 0x10 | 0x100).is_empty());
        assert_eq!(in_words(0x24), ["its power limit", "its temperature"]);
    }
}
