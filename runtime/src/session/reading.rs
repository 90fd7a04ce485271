//! A short summary of the tokens that a session has read. It finds states to continue from and identifies bit-identical states.

use super::prefix_store::Place;

/// A hash of a sequence of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hash(u64);

impl Hash {
    pub fn new() -> Self {
        Hash(0x9e37_79b9_7f4a_7c15)
    }

    pub fn add(&mut self, number: u64) {
        // splitmix64.
        let mut mixed = self.0.rotate_left(23) ^ number.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = mixed ^ (mixed >> 31);
    }

    pub fn value(self) -> u64 {
        self.0
    }

    fn from_tokens(tokens: &[u32]) -> Self {
        let mut hash = Hash::new();
        for &token in tokens {
            hash.add(token.into());
        }
        hash
    }
}

/// The grid of a session whose chunks and steps ended at these positions. See [`Session::grid`].
#[doc(hidden)]
pub fn grid_of(ends: &[u64]) -> u64 {
    let mut grid = Hash::new();
    for &end in ends {
        grid.add(end);
    }
    grid.value()
}

/// Hashes that identify the tokens a session has read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    /// Hash of all tokens; `None` if the state was restored and its tokens are unknown.
    tokens: Option<Hash>,
    /// Hash of the positions where a chunk or a step ended.
    grid: Hash,
    /// The checkpoint that the state was restored from or saved to.
    pub origin: Option<Place>,
}

impl Reading {
    /// The summary of an empty session.
    pub fn new() -> Self {
        Reading {
            tokens: Some(Hash::new()),
            grid: Hash::new(),
            origin: None,
        }
    }

    /// The summary of a checkpoint's state after these tokens.
    pub fn at_checkpoint(place: Place, grid: u64, tokens: &[u32]) -> Self {
        Reading {
            origin: Some(place),
            ..Reading::restored(grid, None, Some(tokens))
        }
    }

    /// The summary of a saved state with this grid. `tokens` are all tokens it has read and `hash` is their hash, where known.
    pub fn restored(grid: u64, hash: Option<u64>, tokens: Option<&[u32]>) -> Self {
        Reading {
            tokens: tokens.map(Hash::from_tokens).or(hash.map(Hash)),
            grid: Hash(grid),
            origin: None,
        }
    }

    pub fn grid(&self) -> u64 {
        self.grid.value()
    }

    /// The hash of the tokens, if known.
    pub fn tokens(&self) -> Option<u64> {
        self.tokens.map(Hash::value)
    }

    /// Adds the tokens of one chunk, which ends at `position`; `None` if no bit of the state depends on chunk boundaries.
    pub fn advance(&mut self, tokens: &[u32], position: Option<u64>) {
        if let Some(hash) = &mut self.tokens {
            for &token in tokens {
                hash.add(token.into());
            }
        }
        if let Some(position) = position {
            self.grid.add(position);
        }
    }

    /// Declares the tokens unknown, so that no history continues from this state.
    pub fn forget_tokens(&mut self) {
        self.tokens = None;
    }

    /// Whether exactly these tokens were read.
    pub fn is_of(&self, tokens: &[u32]) -> bool {
        self.tokens == Some(Hash::from_tokens(tokens))
    }
}
