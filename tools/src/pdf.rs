//! Plots as a PDF document: one page of vectors in ASCII, with Helvetica, which every viewer has. plotters writes PDF only through
//! cairo, a C library.

use std::fmt::Write;
use std::io::Error;

use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
    FontStyle, FontTransform,
};

/// Widths of Helvetica's characters from the space to the tilde, in thousandths of the font's size (Adobe's font metrics).
#[rustfmt::skip]
const WIDTHS: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278,
    556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556,
    1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778,
    667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556,
    333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556,
    556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
];

/// A page that is drawn on. The document is written when it is presented.
pub struct Pdf<'a> {
    document: &'a mut String,
    size: (u32, u32),
    /// What is drawn, as operators of PDF.
    content: String,
    /// The opacities in use, in percent.
    opacities: Vec<u8>,
}

impl<'a> Pdf<'a> {
    /// An empty page of so many points, written to `document` in the end.
    pub fn with_string(document: &'a mut String, size: (u32, u32)) -> Self {
        Pdf {
            document,
            size,
            // From here on y points down, as in a drawing.
            content: format!("1 0 0 -1 0 {} cm\n", size.1),
            opacities: Vec::new(),
        }
    }

    fn draw(&mut self, operators: std::fmt::Arguments) {
        // Writing to a string does not fail.
        let _ = self.content.write_fmt(operators);
    }

    /// The colour of what follows, lines and areas.
    fn color(&mut self, color: BackendColor) {
        let opacity = (100.0 * color.alpha).round() as u8;
        if !self.opacities.contains(&opacity) {
            self.opacities.push(opacity);
        }
        let (r, g, b) = color.rgb;
        let [r, g, b] = [r, g, b].map(|part| f64::from(part) / 255.0);
        self.draw(format_args!(
            "/A{opacity} gs {r:.3} {g:.3} {b:.3} rg {r:.3} {g:.3} {b:.3} RG\n"
        ));
    }

    fn path(&mut self, path: impl IntoIterator<Item = BackendCoord>, end: &str) {
        for (i, (x, y)) in path.into_iter().enumerate() {
            let operator = if i == 0 { 'm' } else { 'l' };
            self.draw(format_args!("{x} {y} {operator}\n"));
        }
        self.draw(format_args!("{end}\n"));
    }

    /// The whole document: its objects, and where in the file each begins.
    fn document(&self) -> String {
        let (width, height) = self.size;
        let opacities: String = self
            .opacities
            .iter()
            .map(|percent| {
                let share = f64::from(*percent) / 100.0;
                format!("/A{percent} << /ca {share:.2} /CA {share:.2} >> ")
            })
            .collect();
        let font = |name: &str| {
            format!(
                "<< /Type /Font /Subtype /Type1 /BaseFont /{name} /Encoding /WinAnsiEncoding >>"
            )
        };
        let objects = [
            "<< /Type /Catalog /Pages 2 0 R >>".into(),
            "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".into(),
            format!(
                "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {width} {height}] /Contents 4 0 R /Resources << \
                 /Font << /F {} /B {} >> /ExtGState << {opacities}>> >> >>",
                font("Helvetica"),
                font("Helvetica-Bold")
            ),
            format!(
                "<< /Length {} >>\nstream\n{}endstream",
                self.content.len(),
                self.content
            ),
        ];
        let mut text = "%PDF-1.4\n".to_string();
        let mut index = format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
        for (i, object) in objects.iter().enumerate() {
            index += &format!("{:010} 00000 n \n", text.len());
            text += &format!("{} 0 obj\n{object}\nendobj\n", i + 1);
        }
        let start = text.len();
        let count = objects.len() + 1;
        text + &index
            + &format!("trailer\n<< /Size {count} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n")
    }
}

/// A text's width in thousandths of the font's size.
fn width(text: &str) -> u32 {
    let wide = |c: char| {
        let known = (c as usize).checked_sub(32).and_then(|i| WIDTHS.get(i));
        u32::from(known.copied().unwrap_or(556))
    };
    text.chars().map(wide).sum()
}

/// A text as PDF writes it. What is not in Latin-1 becomes a question mark.
fn literal(text: &str) -> String {
    let escaped = |c: char| match c {
        '(' | ')' | '\\' => format!("\\{c}"),
        ' '..='~' => c.into(),
        '\u{a0}'..='\u{ff}' => format!("\\{:03o}", c as u32),
        _ => "?".into(),
    };
    text.chars().map(escaped).collect()
}

type Drawn = Result<(), DrawingErrorKind<Error>>;

impl DrawingBackend for Pdf<'_> {
    type ErrorType = Error;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        *self.document = self.document();
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> Drawn {
        self.color(color);
        self.draw(format_args!("{x} {y} 1 1 re f\n"));
        Ok(())
    }

    fn draw_line<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
    ) -> Drawn {
        self.draw_path([from, to], style)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        (left, top): BackendCoord,
        (right, bottom): BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        self.color(style.color());
        let (width, height) = (right - left, bottom - top);
        let end = if fill { "f" } else { "S" };
        self.draw(format_args!(
            "{} w {left} {top} {width} {height} re {end}\n",
            style.stroke_width()
        ));
        Ok(())
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        self.color(style.color());
        self.draw(format_args!("{} w 1 j\n", style.stroke_width()));
        self.path(path, "S");
        Ok(())
    }

    fn draw_circle<S: BackendStyle>(
        &mut self,
        (x, y): BackendCoord,
        radius: u32,
        style: &S,
        fill: bool,
    ) -> Drawn {
        self.color(style.color());
        // A line of no length with round ends is a disk; a circle alone is not drawn by any plot here.
        let diameter = if fill { 2 * radius } else { radius };
        self.draw(format_args!("q 1 J {diameter} w {x} {y} m {x} {y} l S Q\n"));
        Ok(())
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        self.color(style.color());
        self.path(path, "h f");
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        (x, y): BackendCoord,
    ) -> Drawn {
        // As the SVG backend, which the plots' distances are made for.
        let size = style.size() / 1.24;
        let width = size * f64::from(width(text)) / 1000.0;
        let along = match style.anchor().h_pos {
            HPos::Left => 0.0,
            HPos::Center => -width / 2.0,
            HPos::Right => -width,
        };
        let down = match style.anchor().v_pos {
            VPos::Top => 0.76 * size,
            VPos::Center => 0.26 * size,
            VPos::Bottom => -0.26 * size,
        };
        // Where the text goes on to, in the drawing's directions; it stands upright on that.
        let (dx, dy) = match style.transform() {
            FontTransform::None => (1.0, 0.0),
            FontTransform::Rotate90 => (0.0, 1.0),
            FontTransform::Rotate180 => (-1.0, 0.0),
            FontTransform::Rotate270 => (0.0, -1.0),
        };
        let x = f64::from(x) + along * dx - down * dy;
        let y = f64::from(y) + along * dy + down * dx;
        let font = match style.style() {
            FontStyle::Bold => 'B',
            _ => 'F',
        };
        let text = literal(text);
        self.color(style.color());
        self.draw(format_args!(
            "BT /{font} {size:.2} Tf {dx} {dy} {dy} {} {x:.2} {y:.2} Tm ({text}) Tj ET\n",
            -dx
        ));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_begins_where_the_index_says() {
        let mut text = String::new();
        let mut page = Pdf::with_string(&mut text, (200, 100));
        let (rgb, alpha) = ((255, 0, 0), 0.22);
        page.draw_rect((0, 0), (9, 9), &BackendColor { rgb, alpha }, true)
            .unwrap();
        page.present().unwrap();
        assert!(text.starts_with("%PDF-1.4\n") && text.is_ascii());
        let index = text.split("xref\n0 5\n").nth(1).unwrap();
        for (i, line) in index.lines().skip(1).take(4).enumerate() {
            let at: usize = line[..10].parse().unwrap();
            assert!(text[at..].starts_with(&format!("{} 0 obj\n", i + 1)));
        }
        let (_, start) = text.split_once("startxref\n").unwrap();
        let start: usize = start.lines().next().unwrap().parse().unwrap();
        assert!(text[start..].starts_with("xref\n"));
        let (_, rest) = text.split_once("/Length ").unwrap();
        let (length, rest) = rest.split_once(" >>\nstream\n").unwrap();
        assert!(rest[length.parse().unwrap()..].starts_with("endstream"));
        assert!(rest.starts_with("1 0 0 -1 0 100 cm\n/A22 gs 1.000 0.000 0.000 rg"));
    }

    #[test]
    fn texts_are_measured_and_written() {
        assert_eq!(width("i1 "), 222 + 556 + 278);
        assert_eq!(width("~"), 584);
        assert_eq!(literal("a(b)\\ \u{e9} \u{6c34}"), "a\\(b\\)\\\\ \\351 ?");
    }
}
