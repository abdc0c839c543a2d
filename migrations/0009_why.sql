-- Samplers that learn say why they propose a configuration and what they expect it to gain; what is expected decides when a
-- search has come to its end, also where it is taken up again.

-- One line; absent in trials of older versions.
ALTER TABLE trials ADD COLUMN why TEXT;
-- As a share of the value of the best; absent where the sampler expects nothing.
ALTER TABLE trials ADD COLUMN expected_gain REAL;
