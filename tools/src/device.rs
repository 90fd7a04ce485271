//! `--device`: where a session computes.

use std::sync::Arc;

use waterline::Device;

use crate::error::{Error, Result};

/// Where to compute.
#[derive(clap::Args, Clone)]
pub struct DeviceArgs {
    /// cpu, cuda, or cuda:N for GPU number N.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
}

impl DeviceArgs {
    /// Opens the device; none is the CPU.
    pub fn open(&self) -> Result<Option<Arc<Device>>> {
        let unknown = || {
            let name = &self.device;
            Error::usage(format!("--device {name}: expected cpu, cuda or cuda:N"))
        };
        let (kind, ordinal) = match self.device.split_once(':') {
            Some((kind, ordinal)) => (kind, ordinal.parse().map_err(|_| unknown())?),
            None => (self.device.as_str(), 0),
        };
        match kind {
            "cpu" => Ok(None),
            "cuda" => Ok(Some(Device::open(ordinal)?)),
            #[cfg(feature = "emulator")]
            "emulator" => Ok(Some(Device::emulated())),
            _ => Err(unknown()),
        }
    }

    /// As the user gave it.
    pub fn name(&self) -> &str {
        &self.device
    }
}
