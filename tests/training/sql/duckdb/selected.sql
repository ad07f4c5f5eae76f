WITH wanted AS (
  SELECT
    row_id,
    MIN(CASE WHEN pool = 'transfer' THEN NULL ELSE stratum END) AS new_label
  FROM chosen
  GROUP BY
    row_id
), lake_rows AS (
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
    ) AS row_id
  FROM lake
  WHERE
    NOT offer_id IS NULL
)
SELECT DISTINCT
  l.row_id,
  l.offer_id,
  l.shop_id,
  l.language,
  l.title,
  l.description,
  l.category_path,
  l.brand,
  w.new_label AS label,
  l.subcategory,
  l.cluster,
  l.source
FROM lake_rows AS l
JOIN wanted AS w
  ON w.row_id = l.row_id
