-- Every offer of the lake as a few hashes: what it says, where it belongs, when it is drawn.
--
-- Hashes are cut to 12 hexadecimal digits where they only order things: ties fall to row_id, and
-- DuckDB keeps 12 bytes inside a row. No choice hangs on a row's place in a file.
WITH lake_rows AS (
  SELECT
    *,
    -- The whole row, so that two rows with one id are two rows, and equal rows are one.
    MD5(CONCAT_WS(
      '␟', offer_id, COALESCE(shop_id, '␀'), COALESCE(language, '␀'), COALESCE(title, '␀'),
      COALESCE(description, '␀'), COALESCE(category_path, '␀'), COALESCE(brand, '␀'),
      COALESCE(label, '␀'), COALESCE(subcategory, '␀'), COALESCE(cluster, '␀'),
      COALESCE(source, '␀')
    )) AS row_id,
    LOWER(SUBSTRING(
      CASE WHEN REGEXP_MATCHES(title, '[\p{L}\p{N}]') THEN title ELSE COALESCE(description, '') END,
      1, 1000
    )) AS text
  FROM lake
  WHERE offer_id IS NOT NULL
),
-- Entities and tags go, however often they were escaped.
unescaped AS (
  SELECT
    *,
    CASE WHEN text LIKE '%&%' THEN
      REGEXP_REPLACE(
        REGEXP_REPLACE(
          REGEXP_REPLACE(text, '&(amp;)*lt;', '<', 'g'),
          '&(amp;)*gt;', '>', 'g'
        ),
        '&(amp;)*#?[a-z0-9]{1,31};', ' ', 'g'
      )
    ELSE text END AS marked_up
  FROM lake_rows
),
untagged AS (
  SELECT
    *,
    CASE WHEN marked_up LIKE '%<%' THEN
      REGEXP_REPLACE(marked_up, '</?[a-z][^>]*>', ' ', 'g')
    ELSE marked_up END AS words
  FROM unescaped
),
-- Letters with accents go as well, so that "für", "f&uuml;r" and "fÃ¼r" are one text; in scripts
-- that have few other letters they stay.
latin AS (
  SELECT *, TRIM(REGEXP_REPLACE(words, '[^a-z0-9]+', ' ', 'g')) AS said FROM untagged
),
normal AS (
  SELECT
    *,
    CASE WHEN LENGTH(said) * 2 >= LENGTH(words) THEN said
    ELSE TRIM(REGEXP_REPLACE(words, '[^\p{L}\p{N}]+', ' ', 'g')) END AS normalised
  FROM latin
),
-- The label as the taxonomy has it now: what the offer's subcategory says, or else the rest.
routed AS (
  SELECT
    n.*,
    CASE WHEN told.label IS NOT NULL THEN told.new_label ELSE rest.new_label END AS now,
    -- Offers of one product are one group; an offer of no known product is a group by its text.
    CASE WHEN n.cluster IS NULL THEN CONCAT('text:', n.normalised)
    ELSE CONCAT('cluster:', n.cluster) END AS product
  FROM normal AS n
  LEFT JOIN routes AS told ON told.label = n.label AND told.subcategory = n.subcategory
  LEFT JOIN routes AS rest ON rest.label = n.label AND rest.subcategory IS NULL
),
hashed AS (
  SELECT
    *,
    CASE WHEN normalised = '' THEN NULL ELSE MD5(normalised) END AS text_id,
    SUBSTRING(MD5(CONCAT($salt, product)), 1, 8) AS lot,
    SUBSTRING(MD5(CONCAT($seed, '/', row_id)), 1, 12) AS draw,
    -- Inside a stratum, three nested kinds of things to be fair to. What was drawn together with
    -- its parent has a place of its own under each parent: no shop is first everywhere.
    CASE WHEN now IS NULL THEN COALESCE(shop_id, '')
    ELSE CONCAT(label, '␟', COALESCE(subcategory, '')) END AS outer_kind,
    CASE WHEN now IS NULL THEN COALESCE(category_path, '') ELSE product END AS middle_kind,
    CASE WHEN now IS NULL THEN '' ELSE COALESCE(shop_id, '') END AS inner_kind
  FROM routed
)
SELECT
  row_id,
  text_id,
  draw,
  now AS label,
  CASE WHEN label IS NOT NULL AND now IS NULL THEN label ELSE NULL END AS lost_label,
  COALESCE(language, '') AS language,
  CASE WHEN cluster IS NULL THEN 1 ELSE 0 END AS alone,
  -- The lot alone decides, whatever the seed and whatever else the lake holds: a product that was
  -- tested on is never trained on later.
  CASE WHEN lot < $test_below THEN 'test'
       WHEN lot < $validation_below THEN 'validation'
       ELSE 'train' END AS side,
  SUBSTRING(MD5(CONCAT($seed, '/1/', outer_kind)), 1, 12) AS outer_lot,
  SUBSTRING(MD5(CONCAT($seed, '/2/', outer_kind, '␟', middle_kind)), 1, 12) AS middle_lot,
  SUBSTRING(MD5(CONCAT($seed, '/3/', outer_kind, '␟', middle_kind, '␟', inner_kind)), 1, 12)
    AS inner_lot
FROM hashed
