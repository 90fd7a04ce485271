//! An NVIDIA GPU through its driver, which is loaded when a GPU is first opened.

mod stream;

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaContext, DriverError, result, sys};

use crate::cuda::driver::compile;
use crate::cuda::driver::overrides::Overrides;
use crate::cuda::driver::tuning::Tuning;
use crate::cuda::driver::{Address, Driver, Kernel, Queue, TOO_OLD, TensorCores};
use crate::error::{Error, Result};
use stream::Stream;

const MOST_SHARED: sys::CUdevice_attribute =
    sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;

/// A GPU.
pub(crate) struct Gpu {
    context: Arc<CudaContext>,
    name: String,
    sms: u32,
    architecture: String,
    tensor_cores: TensorCores,
    tuning: Tuning,
    shared_memory: usize,
    resident_blocks: std::result::Result<usize, String>,
    /// Whether a kernel may start before the previous one has ended.
    overlaps: bool,
    /// How mapped weights are read in place.
    sharing: Sharing,
    /// The loaded modules. They live as long as the GPU is used, since kernels belong to them.
    modules: Mutex<Vec<usize>>,
}

/// How kernels read the host's memory.
#[derive(Clone, Copy)]
enum Sharing {
    /// Kernels do not read it: weights are copied.
    Copies,
    /// Kernels read all of it, like the host.
    Pageable,
    /// Kernels read registered memory, with these flags.
    Registered(u32),
}

impl Sharing {
    /// Chooses how kernels read mapped weights: a device that shares the host's memory should not have a second copy there.
    fn from_attributes(attribute: impl Fn(sys::CUdevice_attribute) -> bool) -> Self {
        use sys::CUdevice_attribute as Attribute;
        let integrated = attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED);
        if !super::shares_memory().unwrap_or(integrated) {
            return Sharing::Copies;
        }
        if attribute(Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS) {
            return Sharing::Pageable;
        }
        let read_only = attribute(Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
        Sharing::Registered(if read_only {
            sys::CU_MEMHOSTREGISTER_DEVICEMAP | sys::CU_MEMHOSTREGISTER_READ_ONLY
        } else {
            sys::CU_MEMHOSTREGISTER_DEVICEMAP
        })
    }
}

impl Gpu {
    /// Opens GPU number `ordinal`.
    pub fn open(ordinal: usize) -> Result<Arc<Self>> {
        if let Some(reason) = super::STATIC {
            return Err(error("no GPU", reason));
        }
        // SAFETY: this only looks for the driver's library.
        if !unsafe { sys::is_culib_present() } {
            return Err(error(
                "no GPU",
                "the NVIDIA driver (libcuda) is not installed; use the CPU",
            ));
        }
        let named = |e: DriverError| error("no GPU", reason(e));
        // An old driver lacks functions, which cudarc reports by a panic.
        let opened = catch_unwind(AssertUnwindSafe(|| CudaContext::new(ordinal)));
        let context = opened
            .map_err(|_| {
                error(
                    "no GPU",
                    "the NVIDIA driver is too old; install a newer one",
                )
            })?
            .map_err(named)?;
        // SAFETY: every operation on a memory goes through one stream, or waits for the end of the other stream.
        unsafe { context.disable_event_tracking() };
        let overrides = Overrides::from_environment()?;
        let (major, minor) = context.compute_capability().map_err(named)?;
        let architecture = overrides.architecture.clone();
        let architecture = architecture.unwrap_or_else(|| format!("sm_{major}{minor}"));
        // The capability of the kernels, which may be another GPU's.
        let capability = compile::capability(&architecture);
        let tensor_cores = match &overrides.architecture {
            None => TensorCores::for_capability(major),
            // wgmma exists only in the machine code of one chip.
            Some(_) => TensorCores::for_capability(capability / 10).min(TensorCores::Warps),
        };
        let sms = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let sms = context.attribute(sms).map_err(named)? as u32;
        let sms = sms.min(overrides.sms.unwrap_or(u32::MAX));
        let cooperative = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH;
        let cooperative = context.attribute(cooperative).map_err(named)? != 0;
        Ok(Arc::new(Gpu {
            name: context.name().map_err(named)?,
            sms,
            resident_blocks: match (cooperative, capability) {
                (_, ..80) => Err(TOO_OLD.into()),
                (false, _) => Err("the driver does not support cooperative launches".into()),
                (true, _) => Ok(sms as usize),
            },
            architecture,
            tensor_cores,
            tuning: overrides.tuning(Tuning::for_capability(capability)),
            shared_memory: (context.attribute(MOST_SHARED).map_err(named)? as usize)
                .min(overrides.shared_memory.unwrap_or(usize::MAX)),
            overlaps: capability >= 90,
            sharing: Sharing::from_attributes(|attribute| {
                context.attribute(attribute).is_ok_and(|x| x != 0)
            }),
            context,
            modules: Mutex::default(),
        }))
    }

    fn check<T>(&self, result: Result<T, DriverError>) -> Result<T> {
        result.map_err(|e| error(&self.name, reason(e)))
    }

    fn bind(&self) -> Result<()> {
        self.check(self.context.bind_to_thread())
    }
}

fn error(device: &str, reason: impl Into<String>) -> Error {
    Error::Device {
        device: device.into(),
        reason: reason.into(),
    }
}

fn reason(e: DriverError) -> String {
    use sys::cudaError_enum as Code;
    match e.0 {
        Code::CUDA_ERROR_OUT_OF_MEMORY => {
            "its memory is full; choose a smaller model, context or chunk".into()
        }
        Code::CUDA_ERROR_NO_DEVICE => "no device found".into(),
        Code::CUDA_ERROR_INVALID_DEVICE => "there is no device of that number".into(),
        Code::CUDA_ERROR_NO_BINARY_FOR_GPU => {
            "a cached kernel is for another architecture; delete the kernel cache".into()
        }
        code => {
            let text = e.error_string();
            let text = text.map_or_else(|_| "".into(), |text| text.to_string_lossy());
            let lost = if is_lost(code) {
                "; the device was lost, with the state of its sessions: open a new session on a device or on the CPU \
                 and restore the last snapshot"
            } else {
                ""
            };
            format!("{text} ({code:?}){lost}")
        }
    }
}

/// Whether everything that this process has on the device is unusable after this error.
fn is_lost(code: sys::cudaError_enum) -> bool {
    use sys::cudaError_enum as Code;
    matches!(
        code,
        Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | Code::CUDA_ERROR_INVALID_PC
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
            | Code::CUDA_ERROR_LAUNCH_FAILED
            | Code::CUDA_ERROR_LAUNCH_TIMEOUT
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_ECC_UNCORRECTABLE
            | Code::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | Code::CUDA_ERROR_DEVICE_UNAVAILABLE
            | Code::CUDA_ERROR_UNKNOWN
    )
}

impl Driver for Gpu {
    fn name(&self) -> &str {
        &self.name
    }

    fn sms(&self) -> u32 {
        self.sms
    }

    fn tensor_cores(&self) -> TensorCores {
        self.tensor_cores
    }

    fn tuning(&self) -> Tuning {
        self.tuning
    }

    fn shared_memory(&self) -> usize {
        self.shared_memory
    }

    fn resident_blocks(&self) -> std::result::Result<usize, String> {
        self.resident_blocks.clone()
    }

    fn free_bytes(&self) -> Result<usize> {
        self.bind()?;
        let (free, _) = self.check(result::mem_get_info())?;
        Ok(free)
    }

    fn compiles(&self) -> bool {
        compile::is_possible()
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        self.bind()?;
        // SAFETY: the context is current.
        self.check(unsafe { result::malloc_sync(bytes) })
    }

    fn release(&self, address: Address) {
        if self.bind().is_ok() {
            // SAFETY: the address came from `allocate`, and its owner is gone. A lost device is reported elsewhere.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    fn share(&self, host: &[u8]) -> Result<Option<Address>> {
        let flags = match self.sharing {
            Sharing::Copies => return Ok(None),
            Sharing::Pageable => return Ok(Some(host.as_ptr() as Address)),
            Sharing::Registered(flags) => flags,
        };
        self.bind()?;
        let start = host.as_ptr().cast_mut().cast();
        // SAFETY: the bytes are a mapping that stays until `forget`, and nothing writes to it.
        let registered = unsafe { sys::cuMemHostRegister_v2(start, host.len(), flags) }.result();
        // If the system cannot pin a mapped file, the weights are copied, as `shared_bytes` shows.
        if registered.is_err() {
            return Ok(None);
        }
        let mut address = 0;
        // SAFETY: the bytes are registered.
        let found = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, start, 0) }.result();
        self.check(found)?;
        Ok(Some(address))
    }

    fn forget(&self, host: &[u8]) {
        if matches!(self.sharing, Sharing::Registered(_)) && self.bind().is_ok() {
            // SAFETY: `share` registered the bytes, and no kernel reads them any more.
            let _ = unsafe { sys::cuMemHostUnregister(host.as_ptr().cast_mut().cast()) };
        }
    }

    fn pin(&self, host: &[u8]) -> bool {
        let start = host.as_ptr().cast_mut().cast();
        // SAFETY: the bytes stay where they are until `unpin`.
        self.bind().is_ok()
            && unsafe { sys::cuMemHostRegister_v2(start, host.len(), 0) }
                .result()
                .is_ok()
    }

    fn unpin(&self, host: &[u8]) {
        if self.bind().is_ok() {
            // SAFETY: `pin` registered the bytes, and no copy of them is under way.
            let _ = unsafe { sys::cuMemHostUnregister(host.as_ptr().cast_mut().cast()) };
        }
    }

    fn compile(&self, source: &str, names: &[String]) -> Result<Vec<Kernel>> {
        let image = compile::cubin(source, &self.architecture)?;
        self.bind()?;
        // SAFETY: the image is NVRTC's: a complete cubin, or PTX that ends with a zero. The cache verified it if it came from there.
        let module = self.check(unsafe { result::module::load_data(image.as_ptr().cast()) })?;
        self.modules.lock().expect("modules").push(module as usize);
        let mut kernels = Vec::with_capacity(names.len());
        for name in names {
            let text = CString::new(name.as_str()).expect("a name without zeros");
            // SAFETY: the module is loaded and stays so.
            let kernel = self.check(unsafe { result::module::get_function(module, text) })?;
            let shared = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let most = self.shared_memory as i32;
            let fixed = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
            // SAFETY: the function is valid.
            let fixed =
                self.check(unsafe { result::function::get_function_attribute(kernel, fixed) })?;
            // SAFETY: the function is valid.
            self.check(unsafe {
                result::function::set_function_attribute(kernel, shared, (most - fixed).max(0))
            })?;
            kernels.push(Kernel(kernel as usize));
        }
        Ok(kernels)
    }

    fn queue(self: Arc<Self>) -> Result<Box<dyn Queue>> {
        let stream = self.check(self.context.new_stream())?;
        Ok(Box::new(Stream { gpu: self, stream }))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.bind().is_ok() {
            for &module in self.modules.get_mut().expect("modules").iter() {
                // SAFETY: no kernel of the module can be launched any more.
                let _ = unsafe { result::module::unload(module as sys::CUmodule) };
            }
        }
    }
}
