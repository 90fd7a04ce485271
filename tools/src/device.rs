//! Where a command computes.

use crate::error::{Error, Result};

/// The choice of a device.
#[derive(clap::Args, Clone)]
pub struct DeviceArgs {
    /// Where to compute.
    #[arg(long, default_value = "cpu", value_parser = ["cpu", "cuda"])]
    device: String,
}

impl DeviceArgs {
    /// The device's name, if this build can compute there.
    pub fn name(&self) -> Result<&str> {
        match self.device.as_str() {
            "cpu" => Ok("cpu"),
            _ => Err(Error::usage(
                "--device cuda: this build computes on the CPU only",
            )),
        }
    }
}
