//! A page that is either SVG or PDF: one type, so that what draws plots is compiled once.

use std::io::Error;

use plotters::prelude::SVGBackend;
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};

use crate::pdf::Pdf;

/// A page in memory.
pub enum Canvas<'a> {
    /// An SVG element.
    Svg(SVGBackend<'a>),
    /// A PDF document.
    Pdf(Pdf<'a>),
}

type Drawn = Result<(), DrawingErrorKind<Error>>;

impl DrawingBackend for Canvas<'_> {
    type ErrorType = Error;

    fn get_size(&self) -> (u32, u32) {
        match self {
            Canvas::Svg(page) => page.get_size(),
            Canvas::Pdf(page) => page.get_size(),
        }
    }

    fn ensure_prepared(&mut self) -> Drawn {
        match self {
            Canvas::Svg(page) => page.ensure_prepared(),
            Canvas::Pdf(page) => page.ensure_prepared(),
        }
    }

    fn present(&mut self) -> Drawn {
        match self {
            Canvas::Svg(page) => page.present(),
            Canvas::Pdf(page) => page.present(),
        }
    }

    fn draw_pixel(&mut self, point: BackendCoord, color: BackendColor) -> Drawn {
        match self {
            Canvas::Svg(page) => page.draw_pixel(point, color),
            Canvas::Pdf(page) => page.draw_pixel(point, color),
        }
    }

    fn draw_line<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
    ) -> Drawn {
        match self {
            Canvas::Svg(page) => page.draw_line(from, to, style),
            Canvas::Pdf(page) => page.draw_line(from, to, style),
        }
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        match self {
            Canvas::Svg(page) => page.draw_rect(from, to, style, fill),
            Canvas::Pdf(page) => page.draw_rect(from, to, style, fill),
        }
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        match self {
            Canvas::Svg(page) => page.draw_path(path, style),
            Canvas::Pdf(page) => page.draw_path(path, style),
        }
    }

    fn draw_circle<S: BackendStyle>(
        &mut self,
        center: BackendCoord,
        radius: u32,
        style: &S,
        fill: bool,
    ) -> Drawn {
        match self {
            Canvas::Svg(page) => page.draw_circle(center, radius, style, fill),
            Canvas::Pdf(page) => page.draw_circle(center, radius, style, fill),
        }
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        match self {
            Canvas::Svg(page) => page.fill_polygon(path, style),
            Canvas::Pdf(page) => page.fill_polygon(path, style),
        }
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        place: BackendCoord,
    ) -> Drawn {
        match self {
            Canvas::Svg(page) => page.draw_text(text, style, place),
            Canvas::Pdf(page) => page.draw_text(text, style, place),
        }
    }
}
