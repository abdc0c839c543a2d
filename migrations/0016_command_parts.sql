-- The number of words of each part of a trial's command, as JSON: program, flags of the configuration, arguments of the study,
-- address. The model is one word after the program. Null if the engine's commands have other parts, and in older trials.
ALTER TABLE trials ADD COLUMN command_parts TEXT;
