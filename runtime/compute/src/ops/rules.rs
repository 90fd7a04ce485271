//! The rules of one op, which [`crate::program::Program::validate`] collects.

use crate::operands::View;
use crate::state::StatePlan;

/// Collects the first rule that an op breaks.
pub struct Rules<'a> {
    plan: &'a StatePlan,
    broken: Option<String>,
}

impl<'a> Rules<'a> {
    /// Starts with a rule that is already known to be broken, if there is one.
    pub fn new(plan: &'a StatePlan, broken: Option<String>) -> Self {
        Rules { plan, broken }
    }

    /// Returns the first broken rule.
    pub fn broken(self) -> Option<String> {
        self.broken
    }

    /// Requires that `holds`; `broken` says what does not.
    pub fn holds(&mut self, holds: bool, broken: impl FnOnce() -> String) {
        if !holds {
            self.broken.get_or_insert_with(broken);
        }
    }

    /// Requires that a number equals the expected one.
    pub fn equal(&mut self, name: &str, found: usize, expected: usize) {
        self.holds(found == expected, || {
            format!("{name} is {found} instead of {expected}")
        });
    }

    /// Requires that the columns have this width.
    pub fn width(&mut self, name: &str, view: View, width: usize) {
        self.holds(view.width == width, || {
            format!("{name} has {} columns instead of {width}", view.width)
        });
    }

    /// Requires that the number of columns is a multiple of `of`.
    pub fn multiple(&mut self, name: &str, view: View, of: usize) {
        self.holds(of > 0 && view.width.is_multiple_of(of), || {
            format!("{name} has {} columns, not a multiple of {of}", view.width)
        });
    }

    /// Requires that all columns are in rows of one buffer.
    pub fn in_one_buffer(&mut self, names: &str, views: impl IntoIterator<Item = View>) {
        let views: Vec<View> = views.into_iter().collect();
        let same =
            |pair: &[View]| (pair[0].buffer, pair[0].stride) == (pair[1].buffer, pair[1].stride);
        self.holds(views.windows(2).all(same), || {
            format!("{names} are not in one buffer: {views:?}")
        });
    }

    /// Requires that the columns, which the op reads, overlap none of `written`.
    pub fn unwritten(&mut self, name: &str, view: View, written: impl IntoIterator<Item = View>) {
        let mut written = written.into_iter();
        self.holds(!written.any(|other| other.overlaps(&view)), || {
            format!("{name}, {view:?}, is changed by the op")
        });
    }

    /// Requires that no two views are in the same buffer.
    pub fn apart(&mut self, names: &str, views: impl IntoIterator<Item = View>) {
        let mut buffers: Vec<usize> = views.into_iter().map(|view| view.buffer).collect();
        buffers.sort_unstable();
        self.holds(buffers.windows(2).all(|pair| pair[0] != pair[1]), || {
            format!("{names} share a buffer: {buffers:?}")
        });
    }

    /// Requires that the state tensor has this shape; `None` matches any size.
    pub fn state(&mut self, tensor: usize, shape: &[Option<usize>]) {
        let found = &self.plan.tensors()[tensor].shape;
        let fits = |(found, wanted): (&usize, &Option<usize>)| wanted.is_none_or(|n| n == *found);
        let same = found.len() == shape.len() && found.iter().zip(shape).all(fits);
        self.holds(same, || {
            format!("state tensor {tensor} has the shape {found:?} instead of {shape:?}")
        });
    }
}
