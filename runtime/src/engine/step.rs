//! How the steps of a session run on a GPU.

/// How a step runs on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepProgram {
    /// One kernel where the device can hold it; a graph elsewhere, and where `exact` needs the bits of recorded steps.
    #[default]
    Automatic,
    /// As one kernel that stays on the device for the whole token; an error where the device cannot do that.
    Persistent,
    /// As a recorded graph of kernels.
    Recorded,
}

/// How the steps of a session run on its GPU, and why so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepForm {
    /// [`StepProgram::Persistent`] or [`StepProgram::Recorded`].
    program: StepProgram,
    /// Of one kernel what it takes of the device, of a graph why it is one: part of a sentence.
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
