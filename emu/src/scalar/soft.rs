//! Exact binary floating point on integers: unpack, compute, round once.
//!
//! A finite value is `sig * 2^exp` with a `u128` significand whose lowest bit may be a
//! "sticky" one that stands for everything below it. Directed rounding and double
//! rounding are then no special cases, and the host's rounding mode is never used.

/// Direction of a rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// To nearest, ties to even.
    Rn,
    /// To nearest, ties away from zero.
    Rna,
    /// Towards zero.
    Rz,
    /// Towards minus infinity.
    Rm,
    /// Towards plus infinity.
    Rp,
}

/// What the largest exponent field means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Top {
    /// Infinity and NaNs, as in IEEE 754.
    Ieee,
    /// Ordinary numbers, but for all ones, which is NaN (e4m3).
    OneNan,
    /// Ordinary numbers only (e2m1, e2m3, e3m2).
    Finite,
}

/// A binary format: sign, `exp` exponent bits, `man` fraction bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fmt {
    /// Exponent bits.
    pub exp: u32,
    /// Fraction bits.
    pub man: u32,
    /// Meaning of the top exponent.
    pub top: Top,
}

pub(crate) const F64: Fmt = Fmt {
    exp: 11,
    man: 52,
    top: Top::Ieee,
};
pub(crate) const F32: Fmt = Fmt {
    exp: 8,
    man: 23,
    top: Top::Ieee,
};
pub(crate) const TF32: Fmt = Fmt {
    exp: 8,
    man: 10,
    top: Top::Ieee,
};
pub(crate) const F16: Fmt = Fmt {
    exp: 5,
    man: 10,
    top: Top::Ieee,
};
pub(crate) const BF16: Fmt = Fmt {
    exp: 8,
    man: 7,
    top: Top::Ieee,
};
pub(crate) const E5M2: Fmt = Fmt {
    exp: 5,
    man: 2,
    top: Top::Ieee,
};
pub(crate) const E4M3: Fmt = Fmt {
    exp: 4,
    man: 3,
    top: Top::OneNan,
};
pub(crate) const E2M1: Fmt = Fmt {
    exp: 2,
    man: 1,
    top: Top::Finite,
};
pub(crate) const E2M3: Fmt = Fmt {
    exp: 2,
    man: 3,
    top: Top::Finite,
};
pub(crate) const E3M2: Fmt = Fmt {
    exp: 3,
    man: 2,
    top: Top::Finite,
};

/// A number taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Val {
    /// Any NaN.
    Nan,
    /// Infinity; true is negative.
    Inf(bool),
    /// `sig * 2^exp`, negated if `neg`; zero has `sig` 0 and a sign.
    Num {
        /// Sign.
        neg: bool,
        /// Significand.
        sig: u128,
        /// Exponent of the significand's lowest bit.
        exp: i32,
    },
}

use Val::{Inf, Nan, Num};

impl Fmt {
    /// The sign bit.
    pub const fn sign(self) -> u64 {
        1 << (self.exp + self.man)
    }
    /// All bits but the sign.
    pub const fn magnitude(self) -> u64 {
        self.sign() - 1
    }
    /// The fraction field.
    pub const fn fraction(self) -> u64 {
        (1 << self.man) - 1
    }
    /// Positive infinity, where the format has one.
    pub const fn inf(self) -> u64 {
        self.magnitude() & !self.fraction()
    }
    /// The largest finite magnitude.
    pub const fn max(self) -> u64 {
        match self.top {
            Top::Ieee => self.inf() - 1,
            Top::OneNan => self.magnitude() - 1,
            Top::Finite => self.magnitude(),
        }
    }
    /// The NaN that results carry: all ones but the sign (0x7fffffff for f32). f64 generates
    /// 0xfff8000000000000, as the hardware does. Formats without NaN give their maximum.
    pub const fn nan(self) -> u64 {
        if self.man == 52 {
            0xfff8_0000_0000_0000
        } else {
            self.magnitude()
        }
    }
    const fn bias(self) -> i32 {
        (1 << (self.exp - 1)) - 1
    }
    /// Exponent of the lowest bit of a subnormal.
    const fn low(self) -> i32 {
        1 - self.bias() - self.man as i32
    }
    /// Is `bits` a NaN?
    pub const fn is_nan(self, bits: u64) -> bool {
        match self.top {
            Top::Ieee => bits & self.magnitude() > self.inf(),
            Top::OneNan => bits & self.magnitude() == self.magnitude(),
            Top::Finite => false,
        }
    }
    /// Subnormals become zeros of their sign.
    pub const fn flush(self, bits: u64) -> u64 {
        if bits & self.inf() == 0 {
            bits & self.sign()
        } else {
            bits
        }
    }

    /// Below the least normal number, also once rounded as if exponents had no limit: what `.ftz`
    /// flushes (seen on an H200 in f32 and f16).
    pub fn is_tiny(self, value: Val, round: Round) -> bool {
        let Num { neg, sig, exp } = value else {
            return false;
        };
        if sig == 0 {
            return false;
        }
        let top = exp + 127 - sig.leading_zeros() as i32;
        let kept = shift_round(sig, top - self.man as i32 - exp, neg, round);
        let carry = i32::from(kept >> (self.man + 1) != 0);
        top + carry < self.low() + self.man as i32
    }

    /// Takes `bits` apart.
    pub const fn unpack(self, bits: u64) -> Val {
        let neg = bits & self.sign() != 0;
        if self.is_nan(bits) {
            return Nan;
        }
        let field = ((bits & self.magnitude()) >> self.man) as i32;
        let frac = (bits & self.fraction()) as u128;
        if matches!(self.top, Top::Ieee) && field == (1 << self.exp) - 1 {
            return Inf(neg);
        }
        if field == 0 {
            Num {
                neg,
                sig: frac,
                exp: self.low(),
            }
        } else {
            Num {
                neg,
                sig: frac | 1 << self.man,
                exp: self.low() + field - 1,
            }
        }
    }

    /// The overflow result of a rounding.
    const fn overflow(self, neg: bool, round: Round) -> u64 {
        let sign = if neg { self.sign() } else { 0 };
        let away = match round {
            Round::Rn | Round::Rna => true,
            Round::Rz => false,
            Round::Rm => neg,
            Round::Rp => !neg,
        };
        if away && matches!(self.top, Top::Ieee) {
            sign | self.inf()
        } else {
            sign | self.max()
        }
    }

    /// `value` in this format: one rounding; NaN becomes [`Fmt::nan`].
    pub fn pack(self, value: Val, round: Round) -> u64 {
        let (neg, sig, exp) = match value {
            Nan => return self.nan(),
            Inf(neg) if self.top == Top::Ieee => {
                return if neg {
                    self.sign() | self.inf()
                } else {
                    self.inf()
                };
            }
            Inf(neg) => return self.overflow(neg, Round::Rz),
            Num { neg, sig, exp } => (neg, sig, exp),
        };
        let sign = if neg { self.sign() } else { 0 };
        if sig == 0 {
            return sign;
        }
        let top = exp + 127 - sig.leading_zeros() as i32;
        // The kept bits end at the fraction's lowest bit, or at the subnormals'.
        let cut = (top - self.man as i32).max(self.low());
        let kept = shift_round(sig, cut - exp, neg, round);
        let bits = if cut == self.low() {
            kept as u64
        } else {
            // A carry into the next binade is an ordinary addition on the fields.
            ((cut - self.low()) as u64) * (1 << self.man) + kept as u64
        };
        if bits > self.max() {
            self.overflow(neg, round)
        } else {
            sign | bits
        }
    }
}

/// `sig / 2^by` rounded to an integer (a negative `by` shifts left, exactly).
pub(crate) fn shift_round(sig: u128, by: i32, neg: bool, round: Round) -> u128 {
    if by <= 0 {
        return sig << -by;
    }
    let (kept, rest, half) = if by > 127 {
        // Far below half of the last place.
        (0, u128::from(sig != 0), 2)
    } else {
        (sig >> by, sig & ((1 << by) - 1), 1 << (by - 1))
    };
    let up = match round {
        Round::Rn => rest > half || (rest == half && kept & 1 == 1),
        Round::Rna => rest >= half,
        Round::Rz => false,
        Round::Rm => neg && rest != 0,
        Round::Rp => !neg && rest != 0,
    };
    kept + u128::from(up)
}

/// Shifts right, keeping the fact that ones were lost in the lowest bit.
fn jam(sig: u128, by: u32) -> u128 {
    if by == 0 {
        sig
    } else if by > 127 {
        u128::from(sig != 0)
    } else {
        sig >> by | u128::from(sig << (128 - by) != 0)
    }
}

/// The sum; `round` only decides the sign of an exact zero.
pub(crate) fn add(a: Val, b: Val, round: Round) -> Val {
    let ((an, asig, aexp), (bn, bsig, bexp)) = match (a, b) {
        (Nan, _) | (_, Nan) => return Nan,
        (Inf(x), Inf(y)) => return if x == y { a } else { Nan },
        (Inf(_), _) => return a,
        (_, Inf(_)) => return b,
        (
            Num { neg, sig, exp },
            Num {
                neg: n,
                sig: s,
                exp: e,
            },
        ) => ((neg, sig, exp), (n, s, e)),
    };
    match (asig, bsig) {
        (0, 0) if an == bn => return a,
        (0, 0) => {
            return Num {
                neg: round == Round::Rm,
                sig: 0,
                exp: 0,
            };
        }
        (0, _) => return b,
        (_, 0) => return a,
        _ => {}
    }
    // Both with their top bit at 125; the smaller moves right. Operands of at most 106 bits
    // lose nothing to the jam unless they lie two or more places apart, where the sum keeps
    // 124 bits above it.
    let (al, bl) = (
        asig.leading_zeros() as i32 - 2,
        bsig.leading_zeros() as i32 - 2,
    );
    let (asig, aexp, bsig, bexp) = (asig << al, aexp - al, bsig << bl, bexp - bl);
    let exp = aexp.max(bexp);
    let asig = jam(asig, (exp - aexp) as u32);
    let bsig = jam(bsig, (exp - bexp) as u32);
    if an == bn {
        return Num {
            neg: an,
            sig: asig + bsig,
            exp,
        };
    }
    if asig == bsig {
        return Num {
            neg: round == Round::Rm,
            sig: 0,
            exp: 0,
        };
    }
    Num {
        neg: if asig > bsig { an } else { bn },
        sig: asig.abs_diff(bsig),
        exp,
    }
}

/// The exact product (significands of at most 64 bits each).
pub(crate) fn mul(a: Val, b: Val) -> Val {
    match (a, b) {
        (Nan, _) | (_, Nan) => Nan,
        (Inf(x), Inf(y)) => Inf(x != y),
        (Inf(_), Num { sig: 0, .. }) | (Num { sig: 0, .. }, Inf(_)) => Nan,
        (Inf(x), Num { neg, .. }) | (Num { neg, .. }, Inf(x)) => Inf(x != neg),
        (
            Num { neg, sig, exp },
            Num {
                neg: n,
                sig: s,
                exp: e,
            },
        ) => Num {
            neg: neg != n,
            sig: sig * s,
            exp: exp + e,
        },
    }
}

/// The quotient to at least 64 bits, the rest in the sticky bit.
pub(crate) fn div(a: Val, b: Val) -> Val {
    match (a, b) {
        (Nan, _) | (_, Nan) | (Inf(_), Inf(_)) | (Num { sig: 0, .. }, Num { sig: 0, .. }) => Nan,
        (Inf(x), Num { neg, .. }) => Inf(x != neg),
        (Num { neg, .. }, Inf(x)) => Num {
            neg: neg != x,
            sig: 0,
            exp: 0,
        },
        (Num { neg, .. }, Num { neg: n, sig: 0, .. }) => Inf(neg != n),
        (Num { neg, sig: 0, .. }, Num { neg: n, .. }) => Num {
            neg: neg != n,
            sig: 0,
            exp: 0,
        },
        (
            Num { neg, sig, exp },
            Num {
                neg: n,
                sig: s,
                exp: e,
            },
        ) => {
            let up = sig.leading_zeros();
            let sig = sig << up;
            Num {
                neg: neg != n,
                sig: (sig / s) | u128::from(sig % s != 0),
                exp: exp - up as i32 - e,
            }
        }
    }
}

/// The square root to 60 bits or more, the rest in the sticky bit.
pub(crate) fn sqrt(a: Val) -> Val {
    match a {
        Nan | Inf(true) => Nan,
        Inf(false) | Num { sig: 0, .. } => a,
        Num { neg: true, .. } => Nan,
        Num { sig, exp, .. } => {
            let mut up = sig.leading_zeros() as i32;
            if (exp - up) % 2 != 0 {
                up -= 1;
            }
            // An odd exponent with a full significand cannot be: operands have 53 bits at most.
            let sig = sig << up;
            let root = sig.isqrt();
            // Two more places below the root's last: room for the sticky bit.
            Num {
                neg: false,
                sig: root << 2 | u128::from(root * root != sig),
                exp: (exp - up) / 2 - 2,
            }
        }
    }
}

/// The value rounded to an integer in its own right (`.rni` and its kin); keeps the sign of zero.
pub(crate) fn to_integer(a: Val, round: Round) -> Val {
    match a {
        Num { neg, sig, exp } if exp < 0 => Num {
            neg,
            sig: shift_round(sig, -exp, neg, round),
            exp: 0,
        },
        other => other,
    }
}
