//! The backend for NVIDIA GPUs: state and weights on the device, stages as kernels, a step as one recorded program.

#[cfg(test)]
mod attend_tests;
mod compile;
mod driver;
#[cfg(feature = "emulator")]
mod emulator;
mod engine;
mod gpu;
mod launches;
mod products;
mod source;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

pub(crate) use driver::Address;
use driver::{Driver, Kernel};
pub(crate) use engine::Engine;
use launches::Weights;
pub(crate) use launches::{Call, Grid, Launches, Parameter, Rows};
pub(crate) use products::{Factor, format_of};
use source::Source;

use crate::error::Result;
use crate::model::Model;

/// A device that sessions can run on, with the weights and kernels that it holds. Cloning the `Arc` shares them.
pub struct Device {
    driver: Arc<dyn Driver>,
    /// By the model's fingerprint and program.
    weights: Mutex<HashMap<(u64, usize), Arc<Weights>>>,
    /// By source text.
    kernels: Mutex<HashMap<String, Vec<Kernel>>>,
}

impl Device {
    /// Opens GPU number `ordinal`.
    ///
    /// # Errors
    /// [`crate::Error::Device`] without a driver, with one that is too old, or if there is no such GPU.
    pub fn open(ordinal: usize) -> Result<Arc<Self>> {
        Ok(Self::on(gpu::Gpu::open(ordinal)?))
    }

    /// The emulator, on which tests run kernels without a GPU.
    #[cfg(feature = "emulator")]
    pub fn emulated() -> Arc<Self> {
        Self::on(emulator::Emulator::open())
    }

    fn on(driver: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Device {
            driver,
            weights: Mutex::default(),
            kernels: Mutex::default(),
        })
    }

    /// What the device is called.
    pub fn name(&self) -> &str {
        self.driver.name()
    }

    /// Bytes of weights that it holds.
    pub fn weight_bytes(&self) -> usize {
        let weights = self.weights.lock().expect("weights");
        weights.values().map(|weights| weights.bytes()).sum()
    }

    fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// The model's weights, which are uploaded as they are wanted.
    fn weights(&self, model: &Model) -> Arc<Weights> {
        let key = (model.fingerprint(), std::ptr::from_ref(model) as usize);
        let mut weights = self.weights.lock().expect("weights");
        let new = || Arc::new(Weights::new(Arc::clone(&self.driver)));
        Arc::clone(weights.entry(key).or_insert_with(new))
    }

    /// The kernels of a program, compiled if they are not yet.
    fn kernels(&self, source: &Source) -> Result<Vec<Kernel>> {
        let mut kernels = self.kernels.lock().expect("kernels");
        if let Some(found) = kernels.get(&source.text) {
            return Ok(found.clone());
        }
        let compiled = self.driver.compile(&source.text, &source.kernels)?;
        kernels.insert(source.text.clone(), compiled.clone());
        Ok(compiled)
    }
}
