//! Opens devices for the unit tests of several crates.

#![allow(dead_code)] // each uses a part

use std::sync::Arc;

use crate::cuda::Device;

/// Opens a device for a test; without a device the test is reported as skipped and ends.
pub(crate) fn device() -> Option<Arc<Device>> {
    if let Ok(device) = Device::open(0) {
        return Some(device);
    }
    #[cfg(feature = "emulator")]
    return Some(Device::emulated());
    #[cfg(not(feature = "emulator"))]
    {
        crate::skipped::skipped("GPU or emulator");
        None
    }
}

/// Opens a device that runs persistent programs; returns it and the number of blocks that it can
/// hold at once.
pub(crate) fn persistent_device() -> Option<(Arc<Device>, usize)> {
    let device = device()?;
    match device.driver().resident_blocks() {
        Ok(blocks) => Some((device, blocks)),
        Err(reason) => {
            crate::skipped::skipped(&format!("persistent programs, {reason}"));
            None
        }
    }
}
