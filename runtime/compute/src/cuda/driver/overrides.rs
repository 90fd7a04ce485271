//! Runs another GPU's program on this GPU: `WATERLINE_GPU_AS=compute_89,sms=128,shared=99` lays out and compiles what an RTX 4090 runs, for
//! tests on a larger part. Any of these settings may be omitted. `first-poll=NS` and `poll=NS` are for measurements.

use crate::cuda::driver::tuning::Tuning;
use crate::error::{Error, Result};

/// The environment variable.
const VARIABLE: &str = "WATERLINE_GPU_AS";

/// Properties that replace the device's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overrides {
    /// A virtual architecture, such as `compute_89`. The driver compiles its PTX to machine code on any later GPU.
    pub architecture: Option<String>,
    /// Streaming multiprocessors.
    pub sms: Option<u32>,
    /// Bytes of shared memory that a thread block may have.
    pub shared_memory: Option<usize>,
    /// Nanoseconds before the first poll of a mailbox.
    pub first_poll_ns: Option<usize>,
    /// Nanoseconds between polls.
    pub poll_ns: Option<usize>,
}

impl Overrides {
    /// Reads the overrides from the environment.
    pub(crate) fn from_environment() -> Result<Self> {
        match std::env::var(VARIABLE) {
            Ok(text) => Self::parse(&text),
            Err(_) => Ok(Overrides::default()),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let mut overrides = Overrides::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let refused = |expected: &str| {
                Error::invalid(VARIABLE, format!("found {part:?}, expected {expected}"))
            };
            let number = |text: &str, most: u32| {
                let number = text.parse().ok().filter(|n| (1..=most).contains(n));
                number.ok_or_else(|| refused(&format!("a number from 1 to {most}")))
            };
            match part.split_once('=') {
                None => {
                    let number = part.strip_prefix("compute_").map(|n| number(n, 999));
                    number.unwrap_or_else(|| Err(refused("compute_NN, sms=N or shared=KIB")))?;
                    overrides.architecture = Some(part.into());
                }
                Some(("sms", value)) => overrides.sms = Some(number(value, 1024)?),
                Some(("shared", value)) => {
                    overrides.shared_memory = Some((number(value, 1024)? as usize) << 10);
                }
                Some(("first-poll", value)) => {
                    overrides.first_poll_ns = Some(number(value, 10_000)? as usize);
                }
                Some(("poll", value)) => overrides.poll_ns = Some(number(value, 10_000)? as usize),
                Some(_) => {
                    let expected = "compute_NN, sms=N, shared=KIB, first-poll=NS or poll=NS";
                    return Err(refused(expected));
                }
            }
        }
        Ok(overrides)
    }

    /// Returns a device's constants with the overrides applied.
    pub fn tuning(&self, device: Tuning) -> Tuning {
        Tuning {
            first_poll_ns: self.first_poll_ns.unwrap_or(device.first_poll_ns),
            poll_ns: self.poll_ns.unwrap_or(device.poll_ns),
            ..device
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_in_the_words_of_the_environment() {
        let parsed = Overrides::parse("compute_89,sms=128,shared=99,poll=80").expect("a GPU");
        assert_eq!(
            parsed,
            Overrides {
                architecture: Some("compute_89".into()),
                sms: Some(128),
                shared_memory: Some(99 << 10),
                first_poll_ns: None,
                poll_ns: Some(80),
            }
        );
        assert_eq!(Overrides::parse("").expect("nothing"), Overrides::default());
        for wrong in [
            "sm_89",
            "compute_x",
            "sms=0",
            "shared=4096",
            "sms",
            "cores=3",
        ] {
            let error = Overrides::parse(wrong).expect_err(wrong).to_string();
            assert!(error.contains(wrong) && error.contains(VARIABLE), "{error}");
        }
    }
}
