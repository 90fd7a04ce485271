//! Kernels built ahead of time, for machines without NVRTC: a device that only compiles.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cuda::driver::compile;
use crate::cuda::driver::tuning::Tuning;
use crate::cuda::driver::{
    Address, Driver, Kernel, Launch, Queue, Recording, TOO_OLD, TensorCores,
};
use crate::error::Result;

/// A device of some architecture that exists only while a session's kernels are generated and compiled.
pub(crate) struct CompileOnly {
    architecture: String,
    sms: u32,
    /// Folder for the compiled kernels; without a folder none are compiled.
    folder: Option<PathBuf>,
    /// The next free address. Allocations do not overlap, since dependencies are derived from overlaps.
    free: AtomicU64,
}

/// Alignment of allocations.
const ALIGNMENT: usize = 256;

impl CompileOnly {
    /// Creates a device that compiles for `architecture`, such as `sm_87`, into `folder`.
    pub fn new(architecture: &str, sms: u32, folder: Option<PathBuf>) -> Arc<Self> {
        Arc::new(CompileOnly {
            architecture: architecture.into(),
            sms,
            folder,
            free: AtomicU64::new(ALIGNMENT as u64),
        })
    }

    /// Returns 87 for `sm_87`, and zero for unknown names.
    fn number(&self) -> i32 {
        compile::capability(&self.architecture)
    }
}

impl Driver for CompileOnly {
    fn name(&self) -> &str {
        &self.architecture
    }

    fn sms(&self) -> u32 {
        self.sms
    }

    fn tensor_cores(&self) -> TensorCores {
        // An unknown name gets none, which every architecture supports.
        TensorCores::for_capability(self.number() / 10)
    }

    fn tuning(&self) -> Tuning {
        Tuning::for_capability(self.number())
    }

    fn shared_memory(&self) -> usize {
        // By compute capability (CUDA C++ programming guide, technical specifications).
        let kilobytes = match self.number() {
            75 => 64,
            80 | 87 => 163,
            86 | 89 | 120 | 121 => 99,
            _ => 227,
        };
        kilobytes << 10
    }

    fn resident_blocks(&self) -> std::result::Result<usize, String> {
        match self.number() {
            ..80 => Err(TOO_OLD.into()),
            _ => Ok(self.sms as usize),
        }
    }

    fn free_bytes(&self) -> Result<usize> {
        Ok(0)
    }

    fn compiles(&self) -> bool {
        true
    }

    fn stores(&self) -> bool {
        false
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT) as u64;
        Ok(self.free.fetch_add(bytes, Ordering::Relaxed))
    }

    fn release(&self, _address: Address) {}

    fn share(&self, _host: &[u8]) -> Result<Option<Address>> {
        Ok(None)
    }

    fn forget(&self, _host: &[u8]) {}

    fn compile(&self, source: &str, names: &[String]) -> Result<Vec<Kernel>> {
        if let Some(folder) = &self.folder {
            compile::into_folder(source, &self.architecture, folder)?;
        }
        Ok(vec![Kernel(0); names.len()])
    }

    fn queue(self: Arc<Self>) -> Result<Box<dyn Queue>> {
        Ok(Box::new(Nowhere))
    }
}

/// A queue that runs nothing.
struct Nowhere;

impl Queue for Nowhere {
    unsafe fn begin_write(&self, _to: Address, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    unsafe fn begin_read(&self, _from: Address, _bytes: &mut [u8]) -> Result<()> {
        Ok(())
    }

    fn copy(&self, _from: Address, _to: Address, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn clear(&self, _at: Address, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn launch(&self, _launch: &Launch) -> Result<()> {
        Ok(())
    }

    fn admits(&self, _launch: &Launch) -> Result<Option<String>> {
        Ok(None)
    }

    fn record(&self, _launches: &[Launch]) -> Result<Box<dyn Recording>> {
        Ok(Box::new(Nowhere))
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }
}

impl Recording for Nowhere {
    fn replay(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_does_not_overlap() {
        let device = CompileOnly::new("sm_87", 16, None);
        let mut end = 0;
        for bytes in [1, 300, 0, 256, 7] {
            let address = device.allocate(bytes).expect("an address");
            assert!(address >= end && address.is_multiple_of(256), "{address}");
            end = address + bytes as u64;
        }
    }
}
