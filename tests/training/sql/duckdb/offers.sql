WITH placed AS (
  SELECT
    l.row_id,
    l.shop_id,
    l.language,
    l.title,
    l.description,
    l.category_path,
    l.label,
    l.subcategory,
    l.cluster,
    ROW_NUMBER() OVER (PARTITION BY l.offer_id ORDER BY COALESCE(l.revision, -1) DESC, l.row_id) AS place
  FROM lake AS l
  JOIN repeated AS r
    ON r.offer_id = l.offer_id
), lake_rows AS (
  SELECT
    l.row_id,
    l.shop_id,
    l.language,
    l.title,
    l.description,
    l.category_path,
    l.label,
    l.subcategory,
    l.cluster
  FROM lake AS l
  LEFT JOIN repeated AS r
    ON r.offer_id = l.offer_id
  WHERE
    r.offer_id IS NULL AND NOT l.offer_id IS NULL
  UNION ALL
  SELECT
    row_id,
    shop_id,
    language,
    title,
    description,
    category_path,
    label,
    subcategory,
    cluster
  FROM placed
  WHERE
    place = 1
), texts AS (
  SELECT
    *,
    LOWER(
      REPLACE(
        CONCAT(
          SUBSTRING(
            CASE
              WHEN REGEXP_MATCHES(title, '[\p{L}\p{N}]')
              THEN title
              ELSE COALESCE(description, '')
            END,
            1,
            1000
          ),
          '␟',
          SUBSTRING(COALESCE(category_path, ''), 1, 1000),
          ' ',
          SUBSTRING(COALESCE(description, ''), 1, 1000)
        ),
        'İ',
        'i'
      )
    ) AS text
  FROM lake_rows
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
  FROM texts
), untagged AS (
  SELECT
    *,
    CASE
      WHEN marked_up LIKE '%<%'
      THEN REGEXP_REPLACE(marked_up, '</?[a-z][^>␟]*>', ' ', 'g')
      ELSE marked_up
    END AS words
  FROM unescaped
), halves AS (
  SELECT
    *,
    SPLIT_PART(words, '␟', 1) AS name_words,
    SPLIT_PART(words, '␟', 2) AS rest_words
  FROM untagged
), latin AS (
  SELECT
    *,
    TRIM(REGEXP_REPLACE(name_words, '[^a-z0-9]+', ' ', 'g')) AS latin_name,
    TRIM(REGEXP_REPLACE(rest_words, '[^a-z0-9]+', ' ', 'g')) AS latin_rest
  FROM halves
), normal AS (
  SELECT
    *,
    CASE
      WHEN LENGTH(latin_name) * 2 >= LENGTH(name_words)
      THEN latin_name
      ELSE TRIM(REGEXP_REPLACE(REPLACE(name_words, 'ς', 'σ'), '[^\p{L}\p{N}]+', ' ', 'g'))
    END AS name,
    CASE
      WHEN LENGTH(latin_rest) * 2 >= LENGTH(TRIM(rest_words))
      THEN latin_rest
      ELSE TRIM(REGEXP_REPLACE(REPLACE(rest_words, 'ς', 'σ'), '[^\p{L}\p{N}]+', ' ', 'g'))
    END AS rest
  FROM latin
), routed AS (
  SELECT
    n.*,
    CASE WHEN NOT told.label IS NULL THEN told.new_label ELSE rest.new_label END AS now,
    CASE
      WHEN n.cluster IS NULL
      THEN CONCAT('text:', n.name)
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
    CASE WHEN name = '' THEN NULL ELSE MD5(CONCAT(name, '␟', rest)) END AS text_id,
    SUBSTRING(MD5(name), 1, 12) AS name_id,
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
  name_id,
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
