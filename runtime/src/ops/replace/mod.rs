//! Which part of a state a token removes and what it writes instead (RWKV-7, arXiv 2503.14456), from its key k,
//! value v and the rates a at which it learns:
//!
//! ```text
//! removal = normalise(key_gain k)                            per head
//! k      <- k (1 + rate_gain (a - 1))
//! v      <- v + mix (v_first - v)                            v_first: the first layer's v
//! bonus   = (sum over the head of bonus_gain r k) v          what the token adds to its own output
//! ```

use bytemuck::{Pod, Zeroable};

use super::{Access, DeviceOp, Op};
use crate::cpu::{Frame, Shared, simd};
use crate::cuda::{Address, Call, Grid, Launches, Parameter, Rows};
use crate::error::Result;
use crate::operands::View;
use crate::ops::Rules;
use crate::weights::Vector;

/// Where the first layer's values come in.
pub enum FirstValues {
    /// This is the first layer: they are kept here, `[heads, dv]`.
    Keep(View),
    /// They are mixed in.
    Mix {
        /// The first layer's values.
        first: View,
        /// How much of them each value takes.
        mix: View,
    },
}

/// The map; one task a head.
pub struct Replace {
    /// Heads.
    pub heads: usize,
    /// Receptances `[heads, dk]`.
    pub r: View,
    /// Keys `[heads, dk]`, changed in place.
    pub k: View,
    /// Values `[heads, dv]`, changed in place. In another buffer than the keys.
    pub v: View,
    /// Rates `[heads, dk]`.
    pub rate: View,
    /// `[heads, dk]`.
    pub key_gain: Vector,
    /// `[heads, dk]`.
    pub rate_gain: Vector,
    /// `[heads, dk]`.
    pub bonus_gain: Vector,
    /// Added to a key's sum of squares.
    pub eps: f32,
    /// The first layer's values.
    pub first: FirstValues,
    /// Where the removed keys go, `[heads, dk]`.
    pub removal: View,
    /// Where the bonus goes, `[heads, dv]`.
    pub bonus: View,
}

/// `ReplaceInputs` in replace.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Inputs {
    r: Rows,
    k: Rows,
    v: Rows,
    rate: Rows,
    first: Rows,
    mix: Rows,
    removal: Rows,
    bonus: Rows,
    key_gain: Address,
    rate_gain: Address,
    bonus_gain: Address,
    eps: f32,
    pad: i32,
}

/// One head's columns of one token.
struct HeadColumns<'a> {
    r: &'a [f32],
    rate: &'a [f32],
    k: &'a mut [f32],
    v: &'a [f32],
    removal: &'a mut [f32],
    bonus: &'a mut [f32],
}

impl Replace {
    /// One head of one token.
    #[inline(always)]
    fn keys(&self, head: usize, columns: HeadColumns) {
        let HeadColumns {
            r,
            rate,
            k,
            v,
            removal,
            bonus,
        } = columns;
        let gains = |gains| -> &[f32] {
            let gains: &Vector = gains;
            &gains[head * k.len()..][..k.len()]
        };
        let (key_gain, rate_gain, bonus_gain) = (
            gains(&self.key_gain),
            gains(&self.rate_gain),
            gains(&self.bonus_gain),
        );
        for ((removal, k), gain) in removal.iter_mut().zip(&*k).zip(key_gain) {
            *removal = k * gain;
        }
        simd::scale(
            1.0 / (simd::dot(removal, removal) + self.eps).sqrt(),
            removal,
        );
        for ((k, rate), gain) in k.iter_mut().zip(rate).zip(rate_gain) {
            *k *= 1.0 + gain * (rate - 1.0);
        }
        let mut sum = 0.0;
        for ((r, k), gain) in r.iter().zip(&*k).zip(bonus_gain) {
            sum += r * k * gain;
        }
        for (bonus, v) in bonus.iter_mut().zip(v) {
            *bonus = sum * v;
        }
    }
}

impl Op for Replace {
    fn run(&self, frame: &mut Frame) {
        let kept = match &self.first {
            FirstValues::Keep(view) => Some(*view),
            FirstValues::Mix { .. } => None,
        };
        let changed = [
            Some(self.k),
            Some(self.v),
            Some(self.removal),
            Some(self.bonus),
            kept,
        ];
        let mut buffers = changed.map(|view| match view {
            Some(view) => frame.buffers.take(view.buffer),
            None => Vec::new(),
        });
        {
            let [k, v, removal, bonus, first] = buffers.each_mut().map(|b| Shared::new(b));
            frame.pool.each(self.heads, |_, head| {
                simd::vectorize(
                    #[inline(always)]
                    || {
                        for t in 0..frame.tokens.len() {
                            let columns = |view: &View| {
                                let width = view.width / self.heads;
                                let start = t * view.stride + view.start + head * width;
                                start..start + width
                            };
                            let read = |view: &View| &frame.buffers.get(view.buffer)[columns(view)];
                            // SAFETY: each task has its own head's columns (rules: widths, disjoint writes).
                            let k = unsafe { k.part(columns(&self.k)) };
                            // SAFETY: each task has its own head's columns (rules: widths, disjoint writes).
                            let v = unsafe { v.part(columns(&self.v)) };
                            // SAFETY: each task has its own head's columns (rules: widths, disjoint writes).
                            let removal = unsafe { removal.part(columns(&self.removal)) };
                            // SAFETY: each task has its own head's columns (rules: widths, disjoint writes).
                            let bonus = unsafe { bonus.part(columns(&self.bonus)) };
                            match &self.first {
                                FirstValues::Keep(view) => {
                                    // SAFETY: each task has its own head's columns (rules: widths, disjoint writes).
                                    unsafe { first.part(columns(view)) }.copy_from_slice(v);
                                }
                                FirstValues::Mix { first, mix } => {
                                    let inputs = read(first).iter().zip(read(mix));
                                    for (v, (first, mix)) in v.iter_mut().zip(inputs) {
                                        *v += mix * (first - *v);
                                    }
                                }
                            }
                            let columns = HeadColumns {
                                r: read(&self.r),
                                rate: read(&self.rate),
                                k,
                                v,
                                removal,
                                bonus,
                            };
                            self.keys(head, columns);
                        }
                    },
                );
            });
        }
        for (view, buffer) in changed.into_iter().zip(buffers) {
            if let Some(view) = view {
                frame.buffers.put(view.buffer, buffer);
            }
        }
    }

    fn access(&self) -> Access {
        let access = Access::default()
            .reads([self.r, self.rate])
            .updates([self.k, self.v])
            .writes([self.removal, self.bonus]);
        match self.first {
            FirstValues::Keep(first) => access.writes([first]),
            FirstValues::Mix { first, mix } => access.reads([first, mix]),
        }
    }

    fn check(&self, rules: &mut Rules) {
        rules.multiple("k", self.k, self.heads);
        rules.multiple("v", self.v, self.heads);
        rules.width("removal", self.removal, self.k.width);
        rules.width("bonus", self.bonus, self.v.width);
        let changed = [self.k, self.v, self.removal, self.bonus];
        match self.first {
            FirstValues::Keep(first) => {
                rules.width("the first layer's values", first, self.v.width);
                rules.apart("what it changes", changed.into_iter().chain([first]));
            }
            FirstValues::Mix { .. } => rules.apart("what it changes", changed),
        }
    }
}

impl DeviceOp for Replace {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (first, mix, keep) = match &self.first {
            FirstValues::Keep(view) => (view, None, true),
            FirstValues::Mix { first, mix } => (first, Some(mix), false),
        };
        let inputs = Inputs {
            r: launches.rows(self.r),
            k: launches.rows(self.k),
            v: launches.rows(self.v),
            rate: launches.rows(self.rate),
            first: launches.rows(*first),
            mix: mix.map_or(Rows::zeroed(), |view| launches.rows(*view)),
            removal: launches.rows(self.removal),
            bonus: launches.rows(self.bonus),
            key_gain: launches.vector_address(&self.key_gain)?,
            rate_gain: launches.vector_address(&self.rate_gain)?,
            bonus_gain: launches.vector_address(&self.bonus_gain)?,
            eps: self.eps,
            pad: 0,
        };
        let (heads, warps) = (self.heads, 2);
        let (dk, dv) = (self.k.width / heads, self.v.width / heads);
        launches.push(Call {
            source: include_str!("replace.cu"),
            kernel: format!("replace<{heads}, {dk}, {dv}, {keep}>"),
            grid: Grid::EachToken(heads.div_ceil(warps)),
            threads: 32 * warps,
            shared: 0,
            parameters: vec![Parameter::value("ReplaceInputs", inputs)],
        });
        Ok(())
    }
}
