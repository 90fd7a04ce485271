//! The energy that a machine has used, where it has counters: its processors (RAPL), the GPU that computes (NVML), or the whole
//! board of a Jetson (INA3221).

mod jetson;
mod nvml;
mod rapl;

/// A counter of energy.
trait Counter {
    /// Joules since the last call, or since the beginning.
    fn joules(&mut self) -> f64;
}

/// The energy counters of all devices in use.
pub struct Energy {
    counters: Vec<Box<dyn Counter>>,
    sources: String,
}

impl Energy {
    /// The counters from now on, for a run on the processor or, with its number, on a GPU; none if the machine has
    /// none. A Jetson's board includes both, so nothing is added to it.
    pub fn new(gpu: Option<usize>) -> Option<Self> {
        let mut counters: Vec<Box<dyn Counter>> = Vec::new();
        let mut sources = Vec::new();
        if let Some((board, rails)) = jetson::Board::new() {
            counters.push(Box::new(board));
            sources.push(format!("board ({rails})"));
        } else {
            if let Some(packages) = rapl::Packages::new() {
                counters.push(Box::new(packages));
                sources.push("processor packages".into());
            }
            if let Some(gpu) = gpu.and_then(nvml::Gpu::new) {
                counters.push(Box::new(gpu));
                sources.push("GPU".into());
            }
        }
        (!counters.is_empty()).then(|| Energy {
            counters,
            sources: sources.join(" and "),
        })
    }

    /// Joules since the last call, or since the beginning.
    pub fn joules(&mut self) -> f64 {
        let counters = self.counters.iter_mut();
        counters.map(|counter| counter.joules()).sum()
    }

    /// The names of the counters.
    pub fn sources(&self) -> &str {
        &self.sources
    }
}
