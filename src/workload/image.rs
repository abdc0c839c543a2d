//! Chat messages with generated images.

use std::sync::Arc;

use rand::Rng;

use super::draw::{DrawPurpose, between, rng};
use super::length::LengthSpan;
use super::writer::{TextPiece, TextWriter};
use super::{ChatMessage, MessagePart, Prompt, Request, Role, SessionTurn, UserSession, Workload};

/// Requests with random images. No two requests share one, so that no cache of a multimodal encoder helps. The model
/// determines the number of tokens of an image, so [`longest`](Workload::longest) counts the text only.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) writer: TextWriter,
    /// Widths and heights in pixels. Each image draws one of them.
    pub(super) sizes: Vec<(u32, u32)>,
    pub(super) count: u32,
    pub(super) input: LengthSpan,
    pub(super) output: LengthSpan,
}

/// Side of the squares of one random colour that images consist of, in pixels. Squares of the size of a vision model's
/// patches (14 or 16 pixels) differ in everything that the model sees, and compress well.
const SQUARE: u32 = 16;

impl Image {
    pub(super) const MAX_PIXELS: u64 = 64_000_000;
}

impl Workload for Image {
    fn session(&self, index: u64) -> UserSession {
        let mut choice = rng(self.writer.seed(), DrawPurpose::Choice, index);
        let (input, output_len) = (self.input.draw(&mut choice), self.output.draw(&mut choice));
        let mut pixels = rng(self.writer.seed(), DrawPurpose::Pixel, index);
        let last = u32::try_from(self.sizes.len()).unwrap_or(u32::MAX).saturating_sub(1);
        let mut content: Vec<_> = (0..self.count)
            .map(|_| {
                let (width, height) = self.sizes[between(&mut choice, 0, last) as usize];
                MessagePart::Image(png(width, height, &mut pixels))
            })
            .collect();
        if let Prompt::Text(text) = self.writer.prompt([TextPiece::new(DrawPurpose::Prompt, index, input)]) {
            content.push(MessagePart::Text(text));
        }
        let prompt = Prompt::Messages(vec![ChatMessage { role: Role::User, content }]);
        UserSession {
            turns: vec![SessionTurn { request: Request { prompt, output_len }, think: std::time::Duration::ZERO }],
        }
    }

    fn longest(&self) -> u64 {
        self.input.longest() + self.output.longest()
    }
}

/// Returns a PNG file of 8-bit RGB.
fn png(width: u32, height: u32, colours: &mut impl Rng) -> Arc<[u8]> {
    let mut pixels = Vec::with_capacity(3 * width as usize * height as usize);
    for top in (0..height).step_by(SQUARE as usize) {
        let mut row = Vec::with_capacity(3 * (width + SQUARE) as usize);
        for _ in (0..width).step_by(SQUARE as usize) {
            let [red, green, blue, _] = colours.next_u32().to_le_bytes();
            for _ in 0..SQUARE {
                row.extend([red, green, blue]);
            }
        }
        row.truncate(3 * width as usize);
        for _ in top..height.min(top + SQUARE) {
            pixels.extend_from_slice(&row);
        }
    }
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Fast);
    // This filter turns equal rows into zeros.
    encoder.set_filter(png::Filter::Up);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels));
    // Writing to memory cannot fail if the image's size and data agree.
    assert!(written.is_ok(), "{written:?}");
    file.into()
}
