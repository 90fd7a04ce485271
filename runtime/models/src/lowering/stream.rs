//! The residual stream as a whole: its scale, and terms that are computed beside a layer's sublayers.

use super::{Lowering, NormKind, norm};
use crate::error::Result;
use crate::functions::Norm;
use crate::operands::{RESIDUAL, View};
use crate::ops::{HeadGroup, HeadOp, Normalize, Prepare};

/// Bounds of the stream's scale relative to its buffer. Beyond them the buffer is scaled, so that neither overflows.
const SCALES: std::ops::RangeInclusive<f32> = 1.0 / 1024.0..=1024.0;

impl Lowering<'_> {
    /// Multiplies the residual stream by `factor`. The buffer stays as it is where norms and sums can take the factor.
    pub(crate) fn scale_stream(&mut self, factor: f32) {
        let scale = *self.stream * factor;
        if SCALES.contains(&scale) {
            *self.stream = scale;
            return;
        }
        *self.stream = 1.0;
        let stream = View::whole(RESIDUAL, self.hidden);
        self.push_maps(stream, vec![HeadOp::Scale(scale)]);
    }

    /// Multiplies the residual stream by the layer's one number `name`.
    pub(crate) fn scale_by_tensor(&mut self, name: &str) -> Result<()> {
        let name = format!("blk.{}.{name}", self.layer);
        let factor = super::vector(self.file, self.tensors, &name)?;
        factor.iter().for_each(|&factor| self.scale_stream(factor));
        Ok(())
    }

    /// Begins a part of the layer that reads the residual stream without a norm and adds a term after the norm `post`. Returns the
    /// stream's scale relative to its buffer.
    pub(crate) fn begin_plain(&mut self, kind: NormKind, post: &str) -> Result<f32> {
        self.buffers = super::FIRST_FREE;
        self.scope = format!("blk.{}.", self.layer);
        self.pre_norm = None;
        let name = format!("{}{post}", self.scope);
        let post = norm(self.file, self.tensors, &name, kind, self.norm_eps)?;
        self.post_norm = Some(post);
        self.multiplier = 1.0 / *self.stream;
        Ok(*self.stream)
    }

    /// A root-mean-square norm with the gains `name`.
    pub(crate) fn norm(&self, name: &str) -> Result<Norm> {
        Ok(Norm::rms(self.vector(name)?, self.norm_eps))
    }

    /// A root-mean-square norm of the residual stream with the gains `name`, times `factor`.
    pub(crate) fn stream_norm(&self, name: &str, factor: f32) -> Result<Norm> {
        Ok(self.norm(name)?.scaled(factor).divided(*self.stream))
    }

    /// Adds `columns`, as wide as the residual stream, to the stream, through the sublayer's last norm and multiplier. Changes the
    /// columns.
    pub(crate) fn add_columns(&mut self, columns: View) {
        let factor = self.multiplier;
        match &self.post_norm {
            Some(norm) => {
                let norm = norm.scaled(factor);
                self.push(Normalize { columns, norm });
            }
            None if factor != 1.0 => self.push_maps(columns, vec![HeadOp::Scale(factor)]),
            None => {}
        }
        let stream = View::whole(RESIDUAL, self.hidden);
        self.push_maps(stream, vec![HeadOp::Add(columns)]);
    }

    /// Appends maps of single values.
    pub(crate) fn push_maps(&mut self, columns: View, maps: Vec<HeadOp>) {
        self.push(Prepare {
            groups: vec![HeadGroup::per_channel(columns, None, maps)],
            rope: None,
            gates: Vec::new(),
        });
    }
}
