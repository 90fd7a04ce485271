//! Optional sparse attention in parallel with the scan of Mamba and Mamba-2 (HAX, arXiv 2507.00449). With x the mixer's
//! inner channels after the convolution:
//!
//! ```text
//! k, q = W_xx x, k <- k / sqrt(state);   a_t = sum_j softmax_j(q_t k_j) x_j   over the tokens j that t sees
//! ```
//! and `E a` is added to the mixer's output before its gate. The tokens that t sees are the union of a few tokens from
//! each source: the last tokens, the first, every n-th, the last tokens whose key has the query's hash, and the tokens
//! whose keys score highest. Hashed keys and queries are centred by their running means, and scores use the running
//! mean of the queries; the released code takes means over the entire sequence, including later tokens.
//! State: `keys` rows per bin. A key has one bin, so the bins hold different tokens, of any age, and share no rows.

use serde::{Deserialize, Serialize};

use super::Mismatch;
use crate::error::Result;
use crate::functions::OutputOp;
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{self, Hash, Pattern, Scorer, Sources};
use crate::state::{StateDtype, StateKind, StateRange, StateTensor};
use crate::weights::{Vector, WeightSpec};

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hax {
    /// Number of tokens that a query sees from each source.
    pub keys: usize,
    /// The sources.
    pub sources: Vec<KeySource>,
    /// Seed of the random hash matrices; `None` if they are in the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_seed: Option<u32>,
}

/// Where a query finds earlier tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeySource {
    /// The last tokens.
    Window,
    /// The first tokens.
    Sink,
    /// The last tokens among those at positions `every - 1`, `2 every - 1` and so on.
    Dilated {
        /// Step between positions.
        every: usize,
        /// Number of tokens, in place of [`Hax::keys`].
        keys: usize,
    },
    /// The last tokens in the query's bin; the signs of the hash products form its number.
    SignBins {
        /// Number of signs; there are `2^bits` bins.
        bits: usize,
    },
    /// The last tokens in the query's bin, which is the index of the largest hash product.
    ArgmaxBins {
        /// Number of products, and of bins.
        bins: usize,
    },
    /// The tokens with the highest scores.
    Best,
}

/// Limits the number of bins, because each bin has its own ring in memory.
const MOST_BITS: usize = 16;

impl KeySource {
    /// Columns of the hash matrix, and number of bins.
    fn hash(&self) -> Option<(usize, usize)> {
        match *self {
            KeySource::SignBins { bits } => Some((bits, 1 << bits.min(MOST_BITS))),
            KeySource::ArgmaxBins { bins } => Some((bins, bins)),
            _ => None,
        }
    }
}

impl Hax {
    fn hash(&self) -> Option<(usize, usize)> {
        self.sources.iter().find_map(KeySource::hash)
    }

    /// Returns a note on how the scores differ from the released code's, if they do.
    pub(super) fn note(&self) -> Option<String> {
        let means = "HAX: the means of keys and queries are running means over the sequence";
        let seed = self.hash_seed.filter(|_| self.hash().is_some());
        match seed {
            Some(seed) => Some(format!(
                "{means}, and the hash matrices, which the file lacks, are generated from the seed {seed}"
            )),
            None => (self.hash().is_some() || self.selects()).then(|| means.into()),
        }
    }

    fn selects(&self) -> bool {
        self.sources.contains(&KeySource::Best)
    }

    /// Number of tokens that a query sees from `source`.
    fn seen(&self, source: &KeySource) -> usize {
        match source {
            KeySource::Dilated { keys, .. } => *keys,
            _ => self.keys,
        }
    }

    fn rows(&self) -> usize {
        let rows = |source: &KeySource| {
            let bins = source.hash().map_or(1, |(_, bins)| bins);
            self.seen(source).saturating_mul(bins)
        };
        self.sources.iter().map(rows).fold(0, usize::saturating_add)
    }

    pub(super) fn check(&self) -> Result<(), Mismatch> {
        Mismatch::unless(
            (1..=1 << 16).contains(&self.keys) && !self.sources.is_empty(),
            || {
                format!(
                    "{} keys of each of {} sources",
                    self.keys,
                    self.sources.len()
                )
            },
            "sources with 1 to 65536 keys each",
        )?;
        for (i, source) in self.sources.iter().enumerate() {
            let fits = match *source {
                KeySource::Dilated { every, keys } => every > 0 && (1..=1 << 16).contains(&keys),
                KeySource::SignBins { bits } => (1..=MOST_BITS).contains(&bits),
                KeySource::ArgmaxBins { bins } => (1..=1 << MOST_BITS).contains(&bins),
                KeySource::Window | KeySource::Sink | KeySource::Best => true,
            };
            Mismatch::unless(
                fits,
                || format!("{source:?}"),
                "at least one step and one key; 1 to 16 bits or 1 to 65536 bins, since each bin has its own ring",
            )?;
            let like = |other: &KeySource| {
                std::mem::discriminant(other) == std::mem::discriminant(source)
                    || (other.hash().is_some() && source.hash().is_some())
            };
            Mismatch::unless(
                !self.sources[..i].iter().any(like),
                || format!("{:?}", self.sources),
                "each source at most once, and at most one that hashes",
            )?;
        }
        Mismatch::unless(
            self.rows() < 1 << 31,
            || format!("{} cached keys", self.rows()),
            "fewer than 2^31",
        )
    }

    /// The weights, for keys of `width` values and values of `inner` channels.
    pub(super) fn weights(&self, width: usize, inner: usize) -> Vec<WeightSpec> {
        let mut weights = vec![
            WeightSpec::matrix("xx_proj.weight", 2 * width, inner),
            WeightSpec::full("E", &[inner]),
        ];
        if let Some((columns, _)) = self.hash() {
            weights.push(WeightSpec::full("lsh_hash", &[width, columns]));
        }
        if self.selects() {
            for (i, rows) in [(1, 2 * width), (2, 2 * width), (3, 1)] {
                let name = format!("dx_proj_{i}");
                let shape = [rows, 2 * width];
                weights.push(WeightSpec::full(&format!("{name}.weight"), &shape));
                weights.push(WeightSpec::full(&format!("{name}.bias"), &[rows]));
            }
        }
        weights
    }

    pub(super) fn tensors(&self, width: usize, inner: usize) -> Vec<StateTensor> {
        let rows = self.rows();
        let mut tensors = vec![
            StateTensor::new("hax_keys", StateKind::Set, StateDtype::Kv, &[rows, width]),
            StateTensor::new("hax_values", StateKind::Set, StateDtype::Kv, &[rows, inner]),
            StateTensor::new("hax_positions", StateKind::Set, StateDtype::U64, &[rows])
                .within(StateRange::UpToPosition),
            StateTensor::new(
                "hax_means",
                StateKind::Counter,
                StateDtype::F32,
                &[2, width],
            ),
        ];
        if let Some((_, bins)) = self.hash() {
            // A bin's cursor is the row that the bin's next token takes.
            let last = StateRange::UpTo(self.keys as u64 - 1);
            let cursors = ("hax_cursors", StateKind::Counter, StateDtype::U32);
            tensors.push(StateTensor::new(cursors.0, cursors.1, cursors.2, &[bins]).within(last));
        }
        if self.selects() {
            let shape = [self.keys];
            tensors.push(StateTensor::new(
                "hax_scores",
                StateKind::Set,
                StateDtype::F32,
                &shape,
            ));
        }
        tensors
    }

    /// Attends over the columns `x` with keys of `width` values; `first` is the index of its first state tensor among
    /// the mixer's. Returns the term to add to the mixer's output.
    pub(super) fn lower(
        &self,
        layer: &mut Lowering,
        x: View,
        width: usize,
        first: usize,
    ) -> Result<OutputOp> {
        let (k, q) = layer.project_from(x, None, &["xx_proj"])?[0].split(width);
        let mut patterns = Vec::new();
        for source in &self.sources {
            let pattern = match source {
                KeySource::Window => Pattern::Window,
                KeySource::Sink => Pattern::Sink,
                KeySource::Dilated { every, .. } => Pattern::Dilated(*every),
                KeySource::SignBins { .. } | KeySource::ArgmaxBins { .. } => Pattern::Bins(Hash {
                    weight: layer.vector("lsh_hash")?,
                    signs: matches!(source, KeySource::SignBins { .. }),
                }),
                KeySource::Best => Pattern::Best(scorer(layer)?),
            };
            patterns.push((pattern, self.seen(source)));
        }
        let sources = Sources::new(patterns, width);
        let plan = layer.buffer(sources.plan_width());
        let out = layer.buffer(x.width);
        let cursors = self.hash().map(|_| layer.state_tensor(first + 4));
        let after = first + 4 + usize::from(cursors.is_some());
        layer.push(ops::Hax {
            k,
            q,
            v: x,
            sources,
            keys: layer.state_tensor(first),
            values: layer.state_tensor(first + 1),
            positions: layer.state_tensor(first + 2),
            means: layer.state_tensor(first + 3),
            cursors,
            scores: self.selects().then(|| layer.state_tensor(after)),
            plan,
            out,
        });
        Ok(OutputOp::Add(out, layer.vector("E")?))
    }
}

fn scorer(layer: &Lowering) -> Result<Scorer> {
    let layer = |i: usize| -> Result<(Vector, Vector)> {
        Ok((
            layer.vector(&format!("dx_proj_{i}.weight"))?,
            layer.vector(&format!("dx_proj_{i}.bias"))?,
        ))
    };
    let (last, last_bias) = layer(3)?;
    Ok(Scorer::new([layer(1)?, layer(2)?], last, last_bias[0]))
}
