-- Every offer of the lake as a few hashes: what it says, where it belongs, when it is drawn.
--
-- Hashes are cut to 12 hexadecimal digits where they only order things: ties fall to row_id, and
-- DuckDB keeps 12 bytes inside a row. No choice hangs on a row's place in a file.
WITH placed AS (
  SELECT
    l.row_id, l.shop_id, l.language, l.title, l.description, l.category_path, l.label,
    l.subcategory, l.cluster,
    ROW_NUMBER() OVER (
      PARTITION BY l.offer_id ORDER BY COALESCE(l.revision, -1) DESC, l.row_id
    ) AS place
  FROM lake AS l JOIN repeated AS r ON r.offer_id = l.offer_id
),
-- One row an offer: its newest revision, or where that is not known one for good. Only the ids that
-- stand there several times are sorted for it.
lake_rows AS (
  SELECT
    l.row_id, l.shop_id, l.language, l.title, l.description, l.category_path, l.label,
    l.subcategory, l.cluster
  FROM lake AS l LEFT JOIN repeated AS r ON r.offer_id = l.offer_id
  WHERE r.offer_id IS NULL AND l.offer_id IS NOT NULL
  UNION ALL
  SELECT
    row_id, shop_id, language, title, description, category_path, label, subcategory, cluster
  FROM placed
  WHERE place = 1
),
-- What an offer says: its name, which is its title or else its description, and all the rest that a
-- model reads. The brand is no part of it: one shop says it in the title, another beside.
texts AS (
  SELECT
    *,
    -- What engines lower differently, a dotted capital I here and a final sigma below, goes first.
    LOWER(REPLACE(CONCAT(
      SUBSTRING(
        CASE WHEN REGEXP_MATCHES(title, '[\p{L}\p{N}]') THEN title
        ELSE COALESCE(description, '') END,
        1, 1000
      ),
      '␟', SUBSTRING(COALESCE(category_path, ''), 1, 1000),
      ' ', SUBSTRING(COALESCE(description, ''), 1, 1000)
    ), 'İ', 'i')) AS text
  FROM lake_rows
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
  FROM texts
),
untagged AS (
  SELECT
    *,
    CASE WHEN marked_up LIKE '%<%' THEN
      REGEXP_REPLACE(marked_up, '</?[a-z][^>␟]*>', ' ', 'g')
    ELSE marked_up END AS words
  FROM unescaped
),
halves AS (
  SELECT
    *,
    SPLIT_PART(words, '␟', 1) AS name_words,
    SPLIT_PART(words, '␟', 2) AS rest_words
  FROM untagged
),
-- Letters with accents go as well, so that "für", "f&uuml;r" and "fÃ¼r" are one text; in scripts
-- that have few other letters they stay.
latin AS (
  SELECT
    *,
    TRIM(REGEXP_REPLACE(name_words, '[^a-z0-9]+', ' ', 'g')) AS latin_name,
    TRIM(REGEXP_REPLACE(rest_words, '[^a-z0-9]+', ' ', 'g')) AS latin_rest
  FROM halves
),
normal AS (
  SELECT
    *,
    CASE WHEN LENGTH(latin_name) * 2 >= LENGTH(name_words) THEN latin_name
    ELSE TRIM(REGEXP_REPLACE(REPLACE(name_words, 'ς', 'σ'), '[^\p{L}\p{N}]+', ' ', 'g')) END
      AS name,
    CASE WHEN LENGTH(latin_rest) * 2 >= LENGTH(TRIM(rest_words)) THEN latin_rest
    ELSE TRIM(REGEXP_REPLACE(REPLACE(rest_words, 'ς', 'σ'), '[^\p{L}\p{N}]+', ' ', 'g')) END
      AS rest
  FROM latin
),
-- The label as the taxonomy has it now: what the offer's subcategory says, or else the rest.
routed AS (
  SELECT
    n.*,
    CASE WHEN told.label IS NOT NULL THEN told.new_label ELSE rest.new_label END AS now,
    -- Offers of one product are one group; those of no known product are one by their name.
    CASE WHEN n.cluster IS NULL THEN CONCAT('text:', n.name)
    ELSE CONCAT('cluster:', n.cluster) END AS product
  FROM normal AS n
  LEFT JOIN routes AS told ON told.label = n.label AND told.subcategory = n.subcategory
  LEFT JOIN routes AS rest ON rest.label = n.label AND rest.subcategory IS NULL
),
hashed AS (
  SELECT
    *,
    CASE WHEN name = '' THEN NULL ELSE MD5(CONCAT(name, '␟', rest)) END AS text_id,
    SUBSTRING(MD5(name), 1, 12) AS name_id,
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
  name_id,
  draw,
  now AS label,
  CASE WHEN label IS NOT NULL AND now IS NULL THEN label ELSE NULL END AS lost_label,
  COALESCE(language, '') AS language,
  CASE WHEN cluster IS NULL THEN 1 ELSE 0 END AS alone,
  -- The lot alone decides, whatever the seed and whatever else the lake holds: a known product that
  -- was tested on is never trained on later.
  CASE WHEN lot < $test_below THEN 'test'
       WHEN lot < $validation_below THEN 'validation'
       ELSE 'train' END AS side,
  SUBSTRING(MD5(CONCAT($seed, '/1/', outer_kind)), 1, 12) AS outer_lot,
  SUBSTRING(MD5(CONCAT($seed, '/2/', outer_kind, '␟', middle_kind)), 1, 12) AS middle_lot,
  SUBSTRING(MD5(CONCAT($seed, '/3/', outer_kind, '␟', middle_kind, '␟', inner_kind)), 1, 12)
    AS inner_lot
FROM hashed
