//! Options for the vectors of texts.

use waterline::{EmbedOptions, Pooling};

/// How the states of a text become its vector.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Vectors")]
pub struct VectorArgs {
    /// How the final states of a text become its vector: mean, cls (the first state) or last. By default as the model's files state
    /// it.
    #[arg(long, value_name = "HOW")]
    pooling: Option<Pooling>,
    /// Whether vectors have unit length. By default as modules.json states it; true without that file.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    normalize: Option<bool>,
}

impl VectorArgs {
    /// The library's options for vectors cut to `dimensions`.
    pub fn options(&self, dimensions: Option<usize>) -> EmbedOptions {
        let mut options = EmbedOptions::default();
        (options.pooling, options.normalize) = (self.pooling, self.normalize);
        options.dimensions = dimensions;
        options
    }
}
