//! A device as the backend needs it: memory, kernels, and a queue that runs them in order.

mod cache;
mod compile;
pub(crate) mod compile_only;
#[cfg_attr(not(feature = "cuda"), path = "no_gpu.rs")]
pub(crate) mod gpu;
mod nvrtc;
pub(crate) mod overrides;
mod transfer;
pub(crate) mod tuning;
pub(crate) mod weights;

use std::sync::Arc;

pub use transfer::Transfer;

use crate::cuda::driver::tuning::Tuning;
use crate::error::Result;

/// An address in a device's memory.
pub type Address = u64;

/// Why a static program, which can load no library, uses neither the driver nor NVRTC.
pub(crate) const STATIC: Option<&str> =
    if cfg!(all(target_env = "musl", target_feature = "crt-static")) {
        Some("this build has no CUDA: it is static and loads no library")
    } else {
        None
    };

/// Why an old GPU has no decode kernel: 8.0 introduced asynchronous copies into shared memory.
pub(crate) const TOO_OLD: &str = "its compute capability is less than 8.0";

/// The tensor cores of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TensorCores {
    /// Nothing but plain instructions.
    None,
    /// Warps multiply tiles that lie in their registers (`mma`).
    Warps,
    /// Besides, four warps multiply tiles that lie in shared memory (`wgmma`).
    WarpGroups,
}

impl TensorCores {
    /// For chips of this major compute capability.
    pub fn for_capability(major: i32) -> Self {
        match major {
            9 => TensorCores::WarpGroups,
            8.. => TensorCores::Warps,
            _ => TensorCores::None,
        }
    }
}

/// A device with its own memory: a GPU, or the emulator that tests run kernels on.
pub trait Driver: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// Streaming multiprocessors.
    fn sms(&self) -> u32;

    /// The tensor cores of its SMs.
    fn tensor_cores(&self) -> TensorCores;

    /// Constants of the decode kernel.
    fn tuning(&self) -> Tuning;

    /// Bytes of shared memory that a block may have.
    fn shared_memory(&self) -> usize;

    /// Whether a step is faster as a graph than as one kernel: not on a GPU.
    fn prefers_graph(&self) -> bool {
        false
    }

    /// Thread blocks of the decode kernel, which wait for each other, or why there is no such kernel.
    fn resident_blocks(&self) -> std::result::Result<usize, String>;

    /// Bytes of memory that nobody uses.
    fn free_bytes(&self) -> Result<usize>;

    /// Whether it has a compiler for kernels that are not in the cache.
    fn compiles(&self) -> bool;

    /// Whether its memory is real.
    fn stores(&self) -> bool {
        true
    }

    /// Uninitialised memory, aligned to 256 bytes.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Frees memory from [`Driver::allocate`]; nothing uses it any more.
    fn release(&self, address: Address);

    /// Lets kernels read the host's bytes, which begin at a page, in place, and returns their device address; none
    /// on a device that should have a copy. They stay there until [`Driver::forget`].
    fn share(&self, host: &[u8]) -> Result<Option<Address>>;

    /// Ends [`Driver::share`] of these bytes.
    fn forget(&self, host: &[u8]);

    /// Locks the host's bytes in memory until [`Driver::unpin`]: queues copy them at full speed then, while the host does something else.
    /// Where that is refused copies are slower.
    fn pin(&self, _host: &[u8]) -> bool {
        false
    }

    /// Ends [`Driver::pin`] of these bytes.
    fn unpin(&self, _host: &[u8]) {}

    /// Compiles `source` and returns the kernels `names` in order.
    fn compile(&self, source: &str, names: &[String]) -> Result<Vec<Kernel>>;

    /// A new queue.
    fn queue(self: Arc<Self>) -> Result<Box<dyn Queue>>;
}

/// Operations that run one after another on the device.
pub trait Queue: Send {
    /// Begins to copy to the device.
    ///
    /// # Safety
    /// Until [`Queue::finish`] the bytes neither change nor are freed.
    unsafe fn begin_write(&self, to: Address, bytes: &[u8]) -> Result<()>;

    /// Begins to copy from the device, after all that was queued before.
    ///
    /// # Safety
    /// Until [`Queue::finish`] nothing reads or writes the bytes, nor are they freed.
    unsafe fn begin_read(&self, from: Address, bytes: &mut [u8]) -> Result<()>;

    /// Copies to the device; the bytes may change as soon as it returns.
    fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        // SAFETY: the bytes are borrowed until all is done.
        unsafe { self.begin_write(to, bytes)? };
        self.finish()
    }

    /// Copies from the device, after all that was queued before.
    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the bytes are borrowed until all is done.
        unsafe { self.begin_read(from, bytes)? };
        self.finish()
    }

    /// Copies on the device.
    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()>;

    /// Fills with zeros.
    fn clear(&self, at: Address, bytes: usize) -> Result<()>;

    /// Starts a kernel.
    fn launch(&self, launch: &Launch) -> Result<()>;

    /// Why the device cannot run all blocks of a launch at once, if that is so. The launch is one that does nothing.
    fn admits(&self, launch: &Launch) -> Result<Option<String>>;

    /// Records launches that are replayed as one.
    fn record(&self, launches: &[Launch]) -> Result<Box<dyn Recording>>;

    /// Waits until everything that was queued has run.
    fn finish(&self) -> Result<()>;
}

/// Launches that were recorded.
pub trait Recording: Send {
    /// Queues them all.
    fn replay(&self) -> Result<()>;
}

/// A compiled kernel, by the driver's handle.
#[derive(Clone, Copy)]
pub struct Kernel(pub usize);

/// Most parameters of a kernel.
pub(crate) const PARAMETERS: usize = 32;

/// One argument's bytes, as the kernel's parameter lays them out.
#[derive(Clone)]

pub struct Argument(pub Box<[u64]>);

/// A kernel with its arguments.
#[derive(Clone)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// Blocks.
    pub grid: [u32; 3],
    /// Blocks along x that form a cluster; 1 where they need not.
    pub cluster: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The arguments in order.
    pub arguments: Vec<Argument>,
    /// Whether its blocks wait for each other, so that all of them must run at once.
    pub cooperative: bool,
}

/// Memory of a device, released when it is dropped.
pub struct Memory {
    driver: Arc<dyn Driver>,
    address: Address,
    bytes: usize,
}

impl Memory {
    /// Allocates; the contents are undefined.
    pub fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self> {
        Ok(Memory {
            address: driver.allocate(bytes.max(1))?,
            driver: Arc::clone(driver),
            bytes,
        })
    }

    /// Where it begins.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.driver.release(self.address);
    }
}

/// Whether `WATERLINE_MAPPED` says that mapped weights are read where they lie (1) or copied (0).
pub(crate) fn shares_memory() -> Option<bool> {
    match std::env::var("WATERLINE_MAPPED").ok()?.as_str() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}
