//! The form in which a session's steps run on a GPU.

/// How a step runs on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepProgram {
    /// One kernel if the device supports it; otherwise a graph, and with `exact` always a graph.
    #[default]
    Automatic,
    /// One kernel that stays on the device for the complete step; an error if the device does not support it.
    Persistent,
    /// A recorded graph of kernels.
    Recorded,
}

/// How a session's steps run on its GPU, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepForm {
    /// [`StepProgram::Persistent`] or [`StepProgram::Recorded`].
    program: StepProgram,
    /// For one kernel, its use of the device; for a graph, the reason. Part of a sentence.
    reason: String,
}

impl StepForm {
    pub fn persistent(takes: String) -> Self {
        StepForm {
            program: StepProgram::Persistent,
            reason: takes,
        }
    }

    pub fn recorded(reason: String) -> Self {
        StepForm {
            program: StepProgram::Recorded,
            reason,
        }
    }
}

impl std::fmt::Display for StepForm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.program {
            StepProgram::Persistent => write!(f, "one kernel: {}", self.reason),
            _ => write!(f, "a graph of kernels: {}", self.reason),
        }
    }
}
