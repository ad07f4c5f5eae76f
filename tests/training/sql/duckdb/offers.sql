WITH lake_rows AS (
  SELECT
    *,
    MD5(
      CONCAT_WS(
        '␟',
        offer_id,
        COALESCE(shop_id, '␀'),
        COALESCE(language, '␀'),
        COALESCE(title, '␀'),
        COALESCE(description, '␀'),
        COALESCE(category_path, '␀'),
        COALESCE(brand, '␀'),
        COALESCE(label, '␀'),
        COALESCE(subcategory, '␀'),
        COALESCE(cluster, '␀'),
        COALESCE(source, '␀')
      )
    ) AS row_id,
    LOWER(
      SUBSTRING(
        CASE
          WHEN REGEXP_MATCHES(title, '[\p{L}\p{N}]')
          THEN title
          ELSE COALESCE(description, '')
        END,
        1,
        1000
      )
    ) AS text
  FROM lake
  WHERE
    NOT offer_id IS NULL
), unescaped AS (
  SELECT
    *,
    CASE
      WHEN text LIKE '%&%'
      THEN REGEXP_REPLACE(
        REGEXP_REPLACE(REGEXP_REPLACE(text, '&(amp;)*lt;', '<', 'g'), '&(amp;)*gt;', '>', 'g'),
        '&(amp;)*#?[a-z0-9]{1,31};',
        ' ',
        'g'
      )
      ELSE text
    END AS marked_up
  FROM lake_rows
), untagged AS (
  SELECT
    *,
    CASE
      WHEN marked_up LIKE '%<%'
      THEN REGEXP_REPLACE(marked_up, '</?[a-z][^>]*>', ' ', 'g')
      ELSE marked_up
    END AS words
  FROM unescaped
), latin AS (
  SELECT
    *,
    TRIM(REGEXP_REPLACE(words, '[^a-z0-9]+', ' ', 'g')) AS said
  FROM untagged
), normal AS (
  SELECT
    *,
    CASE
      WHEN LENGTH(said) * 2 >= LENGTH(words)
      THEN said
      ELSE TRIM(REGEXP_REPLACE(words, '[^\p{L}\p{N}]+', ' ', 'g'))
    END AS normalised
  FROM latin
), routed AS (
  SELECT
    n.*,
    CASE WHEN NOT told.label IS NULL THEN told.new_label ELSE rest.new_label END AS now,
    CASE
      WHEN n.cluster IS NULL
      THEN CONCAT('text:', n.normalised)
      ELSE CONCAT('cluster:', n.cluster)
    END AS product
  FROM normal AS n
  LEFT JOIN routes AS told
    ON told.label = n.label AND told.subcategory = n.subcategory
  LEFT JOIN routes AS rest
    ON rest.label = n.label AND rest.subcategory IS NULL
), hashed AS (
  SELECT
    *,
    CASE WHEN normalised = '' THEN NULL ELSE MD5(normalised) END AS text_id,
    SUBSTRING(MD5(CONCAT('offer-classifier/', product)), 1, 8) AS lot,
    SUBSTRING(MD5(CONCAT('7', '/', row_id)), 1, 12) AS draw,
    CASE
      WHEN now IS NULL
      THEN COALESCE(shop_id, '')
      ELSE CONCAT(label, '␟', COALESCE(subcategory, ''))
    END AS outer_kind,
    CASE WHEN now IS NULL THEN COALESCE(category_path, '') ELSE product END AS middle_kind,
    CASE WHEN now IS NULL THEN '' ELSE COALESCE(shop_id, '') END AS inner_kind
  FROM routed
)
SELECT
  row_id,
  text_id,
  draw,
  now AS label,
  CASE WHEN NOT label IS NULL AND now IS NULL THEN label ELSE NULL END AS lost_label,
  COALESCE(language, '') AS language,
  CASE WHEN cluster IS NULL THEN 1 ELSE 0 END AS alone,
  CASE
    WHEN lot < '33333333'
    THEN 'test'
    WHEN lot < '4ccccccd'
    THEN 'validation'
    ELSE 'train'
  END AS side,
  SUBSTRING(MD5(CONCAT('7', '/1/', outer_kind)), 1, 12) AS outer_lot,
  SUBSTRING(MD5(CONCAT('7', '/2/', outer_kind, '␟', middle_kind)), 1, 12) AS middle_lot,
  SUBSTRING(MD5(CONCAT('7', '/3/', outer_kind, '␟', middle_kind, '␟', inner_kind)), 1, 12) AS inner_lot
FROM hashed
