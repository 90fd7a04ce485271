use tokenizers::AddedVocabulary;

use super::rwkv::unescape;
use waterline_error::alphabet::Alphabet;

/// Largest accepted vocabulary, far above any real one: a hostile file may use the id 2^32 - 1.
pub(super) const MAX_VOCAB: usize = 1 << 24;

/// How a vocabulary writes bytes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Spelling {
    /// Byte-level BPE: each byte is one printable character.
    ByteLevel,
    /// Text with U+2581 for a space, and `<0x0A>` for a byte if the model has byte fallback.
    Text { byte_fallback: bool },
    /// RWKV: text with Python's escapes.
    Escaped,
}

/// The exact bytes of every token, concatenated, so that decoding a token is a table lookup. Added tokens (control tokens and the like)
/// are stored verbatim.
pub(super) struct ByteTable {
    bytes: Vec<u8>,
    /// `[vocab + 1]`
    offsets: Vec<u32>,
}

impl ByteTable {
    /// Builds the table for `tokens` in this spelling and the added tokens. The error is a reason.
    pub fn new(
        tokens: &[(String, u32)],
        added: &AddedVocabulary,
        spelling: Spelling,
    ) -> Result<Self, String> {
        let added = added.get_added_tokens_decoder();
        let last = tokens.iter().map(|(_, id)| id).chain(added.keys()).max();
        let vocab = last.map_or(0, |&id| id as usize + 1);
        if vocab == 0 || vocab > MAX_VOCAB {
            return Err(format!(
                "found {vocab} token ids, expected 1 to {MAX_VOCAB}"
            ));
        }

        let alphabet = Alphabet::default();
        let mut spelled: Vec<Vec<u8>> = vec![Vec::new(); vocab];
        for (token, id) in tokens {
            spelled[*id as usize] = match spelling {
                Spelling::ByteLevel => alphabet.decode(token),
                Spelling::Escaped => unescape(token),
                Spelling::Text { byte_fallback } => {
                    match fallback_byte(token).filter(|_| byte_fallback) {
                        Some(byte) => vec![byte],
                        None => with_spaces(token),
                    }
                }
            };
        }
        for (&id, token) in added {
            spelled[id as usize] = match spelling {
                Spelling::Text { .. } => with_spaces(&token.content),
                _ => token.content.clone().into_bytes(),
            };
        }

        let mut offsets = Vec::with_capacity(vocab + 1);
        let mut bytes = Vec::new();
        offsets.push(0);
        for token in spelled {
            bytes.extend(token);
            let end =
                u32::try_from(bytes.len()).map_err(|_| "the tokens exceed 4 GiB".to_string())?;
            offsets.push(end);
        }
        Ok(Self { bytes, offsets })
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The bytes of a token; empty for an unknown id.
    pub fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match (self.offsets.get(id), self.offsets.get(id + 1)) {
            (Some(&start), Some(&end)) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }
}

fn with_spaces(token: &str) -> Vec<u8> {
    token.replace('\u{2581}', " ").into_bytes()
}

/// The byte of a token such as `<0x0A>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fallback_bytes_are_two_hexadecimal_digits() {
        assert_eq!(fallback_byte("<0x0A>"), Some(10));
        assert_eq!(fallback_byte("<0xFF>"), Some(255));
        for other in ["<0xA>", "<0x0AB>", "<0xG0>", "0x0A", "<s>"] {
            assert_eq!(fallback_byte(other), None);
        }
    }
}
