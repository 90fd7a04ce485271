//! A model's weights on a device: copied in slabs, or read in place where the host has mapped them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use waterline_quant::Bytes;

use crate::cuda::driver::{Address, Driver, Memory, Queue};
use crate::error::Result;

/// A model's weights on a device, uploaded at first use; shared by sessions.
pub struct Weights {
    driver: Arc<dyn Driver>,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    slabs: Vec<Memory>,
    /// Used bytes of the last slab.
    used: usize,
    /// Mapped files, and the addresses at which kernels read them; `None` if kernels cannot.
    shared: Vec<(Bytes, Option<Address>)>,
    /// Bytes of weights that are read in mapped files.
    shared_bytes: usize,
    /// Device addresses, by the host's address of the bytes and a tag of their layout.
    found: HashMap<(usize, u32), Address>,
}

const SLAB: usize = 32 << 20;
const ALIGNMENT: usize = 256;
/// Kernels read a matrix in words of up to 16 bytes.
const SHARED_ALIGNMENT: u64 = 16;
/// Tags of layouts: small tensors, and matrices.
pub(crate) const PLAIN: u32 = 0;
pub(crate) const STORED: u32 = 1;

impl Weights {
    /// Makes an empty set of weights.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Weights {
            driver,
            loaded: Mutex::default(),
        }
    }

    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Returns the bytes allocated on the device.
    pub fn bytes(&self) -> usize {
        let loaded = self.loaded.lock().expect("weights");
        loaded.slabs.iter().map(Memory::bytes).sum()
    }

    /// Returns the bytes of weights that are read in host memory.
    pub fn shared_bytes(&self) -> usize {
        self.loaded.lock().expect("weights").shared_bytes
    }

    /// Returns the address at which kernels read `bytes` in host memory; `None` if they need a copy.
    pub(crate) fn share(&self, bytes: &Bytes) -> Result<Option<Address>> {
        let Some(file) = bytes.mapping() else {
            return Ok(None);
        };
        let mut loaded = self.loaded.lock().expect("weights");
        let known = loaded.shared.iter();
        let known = known.map(|(other, address)| (other.as_ptr(), *address));
        let known = known.into_iter().find(|(start, _)| *start == file.as_ptr());
        let address = match known {
            Some((_, address)) => address,
            None => {
                let address = self.driver.share(&file)?;
                loaded.shared.push((file.clone(), address));
                address
            }
        };
        let offset = bytes.as_ptr() as usize - file.as_ptr() as usize;
        let place = address.map(|address| address + offset as u64);
        let place = place.filter(|place| place.is_multiple_of(SHARED_ALIGNMENT));
        let key = (bytes.as_ptr() as usize, STORED);
        if let Some(place) = place
            && loaded.found.insert(key, place).is_none()
        {
            loaded.shared_bytes += bytes.len();
        }
        Ok(place)
    }

    /// Returns the address of the device's copy of `host`, in the layout `tag`, which `pack` produces.
    pub(crate) fn upload(
        &self,
        queue: &dyn Queue,
        host: &[u8],
        tag: u32,
        pack: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Result<Address> {
        let mut loaded = self.loaded.lock().expect("weights");
        let key = (host.as_ptr() as usize, tag);
        if let Some(&address) = loaded.found.get(&key) {
            return Ok(address);
        }
        let packed = if self.driver.stores() { pack() } else { None };
        let bytes = packed.as_deref().unwrap_or(host);
        let fits = |slab: &Memory| loaded.used + bytes.len() <= slab.bytes();
        if !loaded.slabs.last().is_some_and(fits) {
            let bytes_of_slab = bytes.len().next_multiple_of(ALIGNMENT).max(SLAB);
            let slab = Memory::new(&self.driver, bytes_of_slab)?;
            loaded.slabs.push(slab);
            loaded.used = 0;
        }
        let address = loaded.slabs[loaded.slabs.len() - 1].address() + loaded.used as u64;
        queue.write(address, bytes)?;
        loaded.used += bytes.len().next_multiple_of(ALIGNMENT);
        loaded.found.insert(key, address);
        Ok(address)
    }
}

impl Drop for Weights {
    fn drop(&mut self) {
        let loaded = self.loaded.get_mut().expect("weights");
        for (file, address) in &loaded.shared {
            if address.is_some() {
                self.driver.forget(file);
            }
        }
    }
}
