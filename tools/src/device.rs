//! `--device`: the device on which a session computes.

use std::sync::Arc;

use waterline::Device;

use crate::error::Result;

/// The choice of a device.
#[derive(clap::Args, Clone)]
pub struct DeviceArgs {
    /// The device: cpu, cuda, cuda:N for GPU number N, or auto for the GPU if there is one.
    #[arg(long = "device", value_name = "DEVICE", default_value = "cpu", value_parser = parse)]
    choice: Choice,
}

#[derive(Clone)]
struct Choice {
    name: String,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Cpu,
    Automatic,
    Cuda(usize),
    #[cfg(feature = "emulator")]
    Emulator,
}

fn parse(name: &str) -> Result<Choice, String> {
    let kind = match name.split_once(':') {
        None if name == "cpu" => Some(Kind::Cpu),
        None if name == "auto" => Some(Kind::Automatic),
        None if name == "cuda" => Some(Kind::Cuda(0)),
        #[cfg(feature = "emulator")]
        None if name == "emulator" => Some(Kind::Emulator),
        Some(("cuda", number)) => number.parse().ok().map(Kind::Cuda),
        _ => None,
    };
    let kind = kind.ok_or("expected cpu, cuda, cuda:N or auto")?;
    let name = name.into();
    Ok(Choice { name, kind })
}

impl DeviceArgs {
    /// Opens the device; `None` is the CPU.
    pub fn open(&self) -> Result<Option<Arc<Device>>> {
        Ok(match self.choice.kind {
            Kind::Cpu => None,
            Kind::Automatic => match Device::open(0) {
                Ok(device) => Some(device),
                Err(error) => {
                    eprintln!("note: the session runs on the CPU: {error}");
                    None
                }
            },
            Kind::Cuda(ordinal) => Some(Device::open(ordinal)?),
            #[cfg(feature = "emulator")]
            Kind::Emulator => Some(Device::emulated()),
        })
    }

    /// The GPU's number, if the device is a GPU.
    pub fn gpu(&self) -> Option<usize> {
        match self.choice.kind {
            Kind::Cuda(ordinal) => Some(ordinal),
            _ => None,
        }
    }

    /// The device, as the user gave it.
    pub fn name(&self) -> &str {
        &self.choice.name
    }
}
