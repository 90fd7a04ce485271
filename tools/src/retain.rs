//! Bounded memory for models trained with full attention: a window, and a set of tokens retained from those that left it.

use waterline::{ModelSpec, Retained, RetainedPolicy};

use crate::error::{Error, Result};

/// Options for replacing attention layers.
#[derive(clap::Args)]
pub struct RetainArgs {
    /// Give every plain attention layer a window, and keep some tokens that leave it: tova or stride=N.
    ///
    /// `tova` keeps the tokens to which the last token paid the most attention (arXiv 2401.06104); `stride=N` keeps every
    /// N-th token. The model's memory then no longer grows with the context, and its answers change once tokens have left
    /// the window.
    #[arg(long, value_name = "POLICY", value_parser = policy, requires = "retained")]
    retain: Option<RetainedPolicy>,
    /// With --retain: size of the window in tokens; without it, the layers must already have a window.
    #[arg(long, value_name = "N", requires = "retain")]
    window: Option<usize>,
    /// With --retain: tokens retained in addition to the window, including the sinks.
    #[arg(long, alias = "kept", value_name = "N", requires = "retain")]
    retained: Option<usize>,
    /// With --retain: tokens at the start that are always retained.
    #[arg(long, value_name = "N", default_value_t = 4, requires = "retain")]
    sink: usize,
}

fn policy(text: &str) -> Result<RetainedPolicy, String> {
    if text == "tova" {
        return Ok(RetainedPolicy::Attention);
    }
    let every = text.strip_prefix("stride=").and_then(|n| n.parse().ok());
    every
        .map(RetainedPolicy::Stride)
        .ok_or_else(|| "expected tova or stride=N, such as stride=8".into())
}

impl RetainArgs {
    /// Whether the options change anything.
    pub fn is_given(&self) -> bool {
        self.retain.is_some()
    }

    /// Changes the attention layers of `spec`; `file` is named in errors.
    pub fn apply(&self, spec: &mut ModelSpec, file: &str) -> Result<()> {
        let (Some(policy), Some(capacity)) = (self.retain, self.retained) else {
            return Ok(());
        };
        let retained = Retained {
            capacity,
            sink: self.sink,
            policy,
        };
        let changed = spec.retain(self.window, retained);
        if changed == 0 {
            let reason = "--retain is for layers of plain attention, and it has none";
            return Err(Error::usage(format!("{file}: {reason}")));
        }
        Ok(spec.check(file)?)
    }
}
